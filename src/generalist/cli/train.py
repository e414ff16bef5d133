"""`generalist train`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from generalist.cli.importing import importing
from generalist.cli.messages import complain
from generalist.cli.options import Download, Json, Method, Quiet, RecipeName, Root, Set, with_root, written
from generalist.core.errors import UserError
from generalist.core.names import TRACKER_NAMES

if TYPE_CHECKING:
    from generalist.recipes.schema import Recipe


def train_command(
    recipe: RecipeName,
    set_: Set = None,
    method: Method = None,
    out: Annotated[
        Path | None, typer.Option(callback=written, help="The run folder; runs/<name> if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    root: Root = None,
    download: Download = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; train and write nothing.")] = False,
    processes: Annotated[
        int | None,
        typer.Option("--ranks", min=1, max=4096, help="With --dry-run: where so many ranks would have the learners."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"{', '.join(TRACKER_NAMES)}: what follows the run, repeatable."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a recipe into a run folder."""
    with importing():
        from generalist.distributed import ranks
        from generalist.recipes.catalogue import load_recipe
        from generalist.report import tables
        from generalist.report.console import make_reporter
        from generalist.runs.train import train
        from generalist.training.guards import Interrupted

    changed = [*(set_ or []), *([f"track={json.dumps(track)}"] if track else [])]
    loaded = with_root(load_recipe(recipe, changed, method=method), root)
    if dry_run:
        _show_plan(loaded, download=download, as_json=as_json, processes=processes or ranks.world())
        return
    if processes is not None:
        raise UserError("--ranks goes with --dry-run; to train with several start them with torchrun")
    folder = out or Path("runs") / loaded.name
    reporter = make_reporter(quiet=quiet or as_json or not ranks.is_main())
    try:
        run = train(loaded, out=folder, resume=resume, download=download, reporter=reporter)
    except Interrupted as stopped:
        changes = [part for change in changed for part in ("--set", change)]
        changes += ["--method", method] if method else []
        changes += [] if root is None else ["--root", str(root)]
        again = shlex.join(["generalist", "train", recipe, *changes, "--out", str(folder), "--resume"])
        complain(f"{stopped}: stopped after a whole step, nothing is lost; go on with: {again}")
        raise typer.Exit(stopped.exit_code) from None
    if as_json:
        print(json.dumps({"run": str(run.folder), **run.summary}))
    elif not quiet:
        tables.show(tables.run_table(run.summary, steps=run.recipe.validation.steps))
        again = shlex.join(["generalist", "eval", str(run.folder)])
        print(f"run folder: {run.folder}\nattack the test split with: {again}")


def _show_plan(recipe: "Recipe", *, download: bool, as_json: bool, processes: int) -> None:
    from generalist.report import tables
    from generalist.runs.doctor import outline
    from generalist.runs.experiment import build

    facts = outline(build(recipe, download=download), ranks=processes)
    if as_json:
        print(json.dumps(facts))
        return
    tables.show(tables.plan_table(facts, description=recipe.description))
    print(*tables.plan_lines(facts), sep="\n")
