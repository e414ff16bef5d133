"""`generalist report`."""

from pathlib import Path
from typing import Annotated

import typer

from generalist.cli import completing
from generalist.cli.importing import importing
from generalist.cli.options import MOST_IMAGES, Quiet, Root, read_path, written_file


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", callback=read_path, autocompletion=completing.runs, help="Run folders."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", callback=written_file, help="The page.")] = Path(
        "report.html"
    ),
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="The strongest all runs have if not given.")] = None,
    paper: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Beside ours: a table of Generalist++ (I to IV) or CVPR 2023 (1a to 5)."),
    ] = None,
    images: Annotated[
        int, typer.Option(min=0, max=MOST_IMAGES, help="Test images to look at for confusions and examples; 0: none.")
    ] = 200,
    root: Root = None,
    quiet: Quiet = False,
) -> None:
    """Write one page that explains runs: results, trade-off, dial, curves, classes, examples, cost and recipes."""
    with importing():
        from generalist.report.console import make_reporter
        from generalist.runs.report import write_report

    path = write_report(
        runs, out, suite=suite, paper=paper, images=images, root=root, reporter=make_reporter(quiet=quiet)
    )
    print(f"report: {path}")
