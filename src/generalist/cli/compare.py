"""`generalist compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli.importing import importing
from generalist.cli.options import read_path, written_file
from generalist.core.errors import UserError, shown
from generalist.core.files import write_atomically, write_json


def compare_command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", callback=read_path, help="Run folders that `eval` has a record of.")
    ],
    paper: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Beside ours: a table of Generalist++ (I to IV) or CVPR 2023 (1a to 5)."),
    ] = None,
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="The strongest all runs have if not given.")] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", callback=written_file, help="Plain numbers, one row a run.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", callback=written_file, help="Everything, to a file.")
    ] = None,
    latex_file: Annotated[
        Path | None, typer.Option("--latex", metavar="FILE", callback=written_file, help="A booktabs tabular.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", callback=written_file, help="A Markdown table.")
    ] = None,
    scatter_file: Annotated[
        Path | None,
        typer.Option("--scatter", metavar="FILE.png", callback=written_file, help="Natural against robust accuracy."),
    ] = None,
) -> None:
    """Put evaluated runs side by side; nothing is trained or attacked again."""
    with importing():
        from generalist.report import layouts
        from generalist.runs.compare import compare

    if scatter_file is not None and scatter_file.suffix.lower() != ".png":
        raise UserError(f"--scatter writes a .png file, got {shown(str(scatter_file))}")
    found = compare(runs, suite=suite, paper=paper)
    files: dict[Path, bytes] = {}
    if csv_file is not None:
        files[csv_file] = _bytes(layouts.csv_text(found))
    if latex_file is not None:
        files[latex_file] = _bytes(layouts.latex_text(found))
    if markdown_file is not None:
        files[markdown_file] = _bytes(layouts.markdown_text(found))
    if scatter_file is not None:
        from generalist.report.scatter import draw_scatter  # matplotlib is slow to import, and for this alone

        files[scatter_file] = draw_scatter(found)
    for path, content in files.items():
        write_atomically(path, content)
    if json_file == "-":
        print(json.dumps(found.record()))
        return
    if json_file is not None:
        write_json(Path(json_file), found.record())
    layouts.show_comparison(found)


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # a path may hold bytes that are no UTF-8
