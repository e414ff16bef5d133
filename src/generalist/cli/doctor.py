"""`generalist doctor`."""

import json
from typing import Annotated

import typer

from generalist.cli import completing
from generalist.cli.importing import importing
from generalist.cli.options import Download, Json, Method, Root, Set, with_root


def doctor_command(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE]", autocompletion=completing.recipes, help="Estimate what this recipe would cost here."
        ),
    ] = "digits-generalist-t",
    set_: Set = None,
    method: Method = None,
    root: Root = None,
    download: Download = False,
    as_json: Json = False,
) -> None:
    """Device, number formats, threads, data found, and a five-second probe of what a recipe would cost."""
    with importing():
        from generalist.recipes.catalogue import load_recipe
        from generalist.report import tables
        from generalist.runs.doctor import estimate, examine

    loaded = with_root(load_recipe(recipe, set_ or [], method=method), root)
    probe = estimate(loaded, download=download)  # before the data of other recipes counts as memory
    facts = examine(root)
    if as_json:
        print(json.dumps({**facts, "probe": probe}))
    else:
        tables.show(tables.machine_table(facts))
        tables.show(tables.probe_table(probe))
