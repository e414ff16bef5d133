"""`generalist export`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli.importing import importing
from generalist.cli.options import Json, Quiet, read_path, written
from generalist.core.errors import unknown
from generalist.core.names import EXPORT_FORMATS


def export_command(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", callback=read_path, help="A run folder, also a dial's, or a model file.")
    ],
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"{', '.join(EXPORT_FORMATS)}.")] = "hub-folder",
    out: Annotated[
        Path | None, typer.Option(callback=written, help="The file or folder; called as the run if not given.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a run: global, or a learner; global if not given.")
    ] = None,
    threat: Annotated[
        str | None, typer.Option(metavar="NORM:EPS", help="For robustbench: which one, if it was several.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="Upload the hub-folder there; nothing is sent without this."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a trained model for other programs, with a card of what was measured, and check the file."""
    if to not in EXPORT_FORMATS:  # before torch is imported
        raise unknown("format", to, EXPORT_FORMATS)
    with importing():
        from generalist.report.console import make_reporter
        from generalist.runs.export import LOAD, export

    reporter = make_reporter(quiet=quiet or as_json)
    done = export(source, to, out=out, name=model, threat=threat, push=push, reporter=reporter)
    if as_json:
        print(json.dumps(done.record()))
        return
    print(f"{to}: {done.path}")
    if quiet:
        return
    if done.difference is not None:
        print(f"loaded back: logits differ by {done.difference:.1e} at most")
        print("files: " + ", ".join(path.name for path in done.files))
    if to == "robustbench":
        print("for you to fill in: link, authors, venue")
    elif to == "hub-folder":
        print(LOAD["pt2"].format(file=done.path / "model.pt2").splitlines()[-1])
    if done.pushed:
        print(f"pushed: {done.pushed}")
