"""`generalist compare`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from generalist.cli import completing
from generalist.cli.analyses import compare_analyses
from generalist.cli.importing import importing
from generalist.cli.options import figure_file, read_path, written_file
from generalist.core.errors import UserError
from generalist.core.files import write_atomically, write_json
from generalist.core.names import CURVE, OOD


def compare_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            callback=read_path,
            autocompletion=completing.runs,
            help="Run folders that `eval` has a record of.",
        ),
    ],
    paper: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Beside ours: a table of Generalist++ (I to IV) or CVPR 2023 (1a to 5)."),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="The strongest all runs have if not given; ood with --paper IV.")
    ] = None,
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
        typer.Option("--scatter", metavar="FILE", callback=figure_file, help="The trade-off, as .png or .svg."),
    ] = None,
    classes: Annotated[bool, typer.Option("--classes", help="Accuracy of every class instead.")] = False,
    bars_file: Annotated[
        Path | None,
        typer.Option("--bars", metavar="FILE", callback=figure_file, help="Bars by class, as .png or .svg."),
    ] = None,
) -> None:
    """Put evaluated runs side by side; nothing is trained or attacked again."""
    with importing():
        from generalist.report import classwise, layouts
        from generalist.runs.compare import compare, compare_classes

    if classes and paper is not None:
        raise UserError(f"the papers' tables have no figures by class; leave out --paper {paper} or --classes")
    if suite == CURVE:
        if classes or any(given is not None for given in (paper, csv_file, latex_file, markdown_file, bars_file)):
            raise UserError("--suite curve has a table, --json and --scatter (the curves), and no other layout")
        compare_analyses(CURVE, runs, json_file=json_file, figure=scatter_file)
        return
    found = compare(runs, suite=suite, paper=paper)
    if found.suite == OOD and (classes or bars_file is not None):
        raise UserError(f"suite {OOD} has no figures by class; leave out --classes and --bars")
    by_class = compare_classes(runs, suite=suite) if classes or bars_file is not None else None
    table: Any = by_class if classes else found
    layout: Any = classwise if classes else layouts
    files: dict[Path, bytes] = {}
    if csv_file is not None:
        files[csv_file] = _bytes(layout.csv_text(table))
    if latex_file is not None:
        files[latex_file] = _bytes(layout.latex_text(table))
    if markdown_file is not None:
        files[markdown_file] = _bytes(layout.markdown_text(table))
    if scatter_file is not None:
        from generalist.report.scatter import draw_scatter  # matplotlib is slow to import, and for this alone

        files[scatter_file] = draw_scatter(found, kind=scatter_file.suffix.lower()[1:])
    if bars_file is not None and by_class is not None:
        files[bars_file] = classwise.draw_classes(by_class, kind=bars_file.suffix.lower()[1:])
    for path, content in files.items():
        write_atomically(path, content)
    if json_file == "-":
        print(json.dumps(table.record()))
        return
    if json_file is not None:
        write_json(Path(json_file), table.record())
    layout.show_comparison(table)
    if found.suite == OOD:
        compare_analyses(OOD, runs, json_file=None, figure=None)


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # a path may hold bytes that are no UTF-8
