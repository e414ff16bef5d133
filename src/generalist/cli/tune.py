"""`generalist tune`."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli.importing import importing
from generalist.cli.messages import complain
from generalist.cli.options import Download, Json, Method, Quiet, RecipeName, Root, Set, written
from generalist.cli.study import Budget, Storage, Workers
from generalist.core.errors import UserError, shown
from generalist.core.files import user_path


def tune_command(
    recipe: RecipeName,
    objectives: Annotated[
        str, typer.Option(metavar="A,B,…", help="What to trade off: natural, and norms of the recipe's threats; mean.")
    ] = "natural,linf,l2",
    budget: Budget = None,
    trials: Annotated[int | None, typer.Option(min=1, max=100_000, help="At most so many trials in all.")] = None,
    search: Annotated[
        str, typer.Option(metavar="A,B,…", help="Fields to search: gamma, c, start, lr, trains, objectives.")
    ] = "gamma,c,start,lr,trains,objectives",
    at_least: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE=PERCENT", help="Choose a recipe like this, such as natural=80; repeatable."),
    ] = None,
    maximise: Annotated[
        str | None, typer.Option(metavar="OBJECTIVE", help="Of those, the best by this; by the sum if not given.")
    ] = None,
    set_: Set = None,
    method: Method = None,
    out: Annotated[
        Path | None, typer.Option(callback=written, help="The folder for runs and results; tuned/<name>.")
    ] = None,
    storage: Storage = None,
    workers: Workers = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the search; the recipe has its own.")] = 0,
    root: Root = None,
    download: Download = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search around a recipe for a better trade-off, on its validation split."""
    with importing():
        from generalist.report.console import make_reporter
        from generalist.runs.studies.study import parse_budget
        from generalist.runs.studies.tune import tune
        from generalist.training.guards import Interrupted

    try:
        found = tune(
            recipe,
            objectives=[name.strip() for name in objectives.split(",")],
            budget_seconds=None if budget is None else parse_budget(budget),
            trials=trials,
            searched=[name.strip() for name in search.split(",")],
            at_least=_minima(at_least or []),
            maximise=maximise,
            out=out,
            storage=storage,
            workers=workers,
            overrides=set_ or [],
            method=method,
            root=None if root is None else str(user_path(root).resolve()),
            download=download,
            seed=seed,
            reporter=make_reporter(quiet=quiet or as_json),
        )
    except (Interrupted, KeyboardInterrupt) as stopped:
        again = shlex.join(["generalist", *sys.argv[1:]])
        complain(f"interrupted; the trials so far are kept, and the one at work from its last checkpoint: {again}")
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None
    if as_json:
        print(json.dumps(found.record()))
        return
    print(found.table)
    print(f"chosen: {found.chosen}, written to {found.file}")
    if not quiet:
        print(f"train it with: {shlex.join(['generalist', 'train', str(found.file)])}")


def _minima(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise UserError(f"--at-least takes an objective and a percentage, natural=80, got {shown(text)}") from None
    return found
