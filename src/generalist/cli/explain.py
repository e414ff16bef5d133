"""`generalist explain`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli import completing
from generalist.cli.importing import importing
from generalist.cli.options import MOST_IMAGES, Download, Json, Quiet, Root, read_path, written


def explain_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", callback=read_path, autocompletion=completing.runs, help="Run folders."),
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="Their global model, or a learner.")] = "global",
    images: Annotated[
        int, typer.Option("--images", "--n", min=1, max=MOST_IMAGES, help="The first so many of the test split.")
    ] = 200,
    examples: Annotated[int, typer.Option(min=1, max=100, help="Images that are shown with Grad-CAM.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the attack's random starts.")] = 0,
    out: Annotated[
        Path | None, typer.Option(callback=written, help="The folder for all figures; figures/ in each run.")
    ] = None,
    root: Root = None,
    download: Download = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what models take for what under PGD-20, which classes are weak, and what they look at (Grad-CAM)."""
    with importing():
        from generalist.report.confusion import confusion_lines
        from generalist.report.console import make_reporter
        from generalist.runs.explain import explain_runs

    report = explain_runs(
        runs, images=images, examples=examples, seed=seed, name=model, out=out, root=root, download=download,
        reporter=make_reporter(quiet=quiet or as_json),
    )  # fmt: skip
    if as_json:
        print(json.dumps(report.record()))
        return
    for title, found in report.explanations.items():
        print("\n".join([title, *(f"  {line}" for line in confusion_lines(found))]))
    for heading, indices in report.rows.items():
        print(f"{heading}: {', '.join(map(str, indices))}")
    if not quiet:
        print(f"figures: {', '.join(map(str, report.files))}")
