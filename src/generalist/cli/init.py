"""`generalist init`."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli import completing
from generalist.cli.importing import importing
from generalist.cli.options import Json, Quiet, read_path, written_file


def init_command(
    source: Annotated[
        Path,
        typer.Argument(metavar="FOLDER|FILE.npz", callback=read_path, help="One sub-folder per class, or arrays."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", callback=written_file, help="The recipe; <name>.yaml here if not given."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=completing.methods, help="A shipped method.")
    ] = "generalist-late-t",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A network: shipped, timm/<name>, torchvision/<name>, module:callable."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="The side in pixels that images are resized to.")
    ] = None,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Time a few steps to tell the cost.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look at images of your own and write a recipe that trains on them."""
    with importing():
        from generalist.report import tables
        from generalist.report.console import make_reporter
        from generalist.runs.init import init

    reporter = make_reporter(quiet=quiet or as_json)
    found = init(source, out=out, method=method, model=model, size=size, probe=probe, reporter=reporter)
    if as_json:
        fields = {"recipe": str(found.path), "notes": list(found.proposal.notes), "fields": found.proposal.fields}
        print(json.dumps({**fields, "broken": list(found.survey.broken), "probe": found.probe}))
        return
    tables.show(tables.survey_table(found.survey, found.proposal.fields))
    for note in found.proposal.notes:
        print(f"note: {note}")
    if found.cost:
        print(found.cost)
    train = shlex.join(["generalist", "train", str(found.path)])
    print(f"recipe: {found.path}\ntrain it with: {train}")
