"""The command line: thin, and the only place that exits."""

import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from generalist.api import load
from generalist.build import build, load_data
from generalist.catalogue import load_recipe, recipe_names
from generalist.core.errors import RunError, UserError
from generalist.core.files import write_json
from generalist.core.threat import Threat
from generalist.doctor import estimate, examine, outline
from generalist.evaluation import Evaluation, evaluate_split
from generalist.recipe import Recipe
from generalist.report import tables
from generalist.report.console import Reporter, make_reporter
from generalist.run import Run, train
from generalist.training.guards import Interrupted
from generalist.training.precision import pick_device
from generalist.version import __version__

UsageError: Any = typer.BadParameter.__base__
"""What the parser of arguments raises; typer has no public name for it."""

app = typer.Typer(
    help="Robust image classifiers: trained, attacked and explained.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results.")]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON on standard output.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a recipe field, such as training.epochs=10; repeatable."),
]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command("train")
def train_command(
    recipe: RecipeName,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/<name> if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing data from its official source.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; train and write nothing.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a recipe into a run folder."""
    loaded = load_recipe(recipe, set_ or [])
    if dry_run:
        _show_plan(loaded, download=download, as_json=as_json)
        return
    folder = out or Path("runs") / loaded.name
    reporter = make_reporter(quiet=quiet or as_json)
    try:
        run = train(loaded, out=folder, resume=resume, download=download, reporter=reporter)
    except Interrupted as stopped:
        changes = [part for change in set_ or [] for part in ("--set", change)]
        again = shlex.join(["generalist", "train", recipe, *changes, "--out", str(folder), "--resume"])
        _complain(f"{stopped}: stopped after a whole step, nothing is lost; go on with: {again}")
        raise typer.Exit(stopped.exit_code) from None
    if as_json:
        print(json.dumps({"run": str(run.folder), **run.summary}))
    elif not quiet:
        tables.show(tables.run_table(run.summary, steps=run.recipe.validation.steps))
        again = shlex.join(["generalist", "eval", str(run.folder)])
        print(f"run folder: {run.folder}\nattack the test split with: {again}")


def _show_plan(recipe: Recipe, *, download: bool, as_json: bool) -> None:
    facts = outline(build(recipe, download=download))
    if as_json:
        print(json.dumps(facts))
        return
    tables.show(tables.plan_table(facts, description=recipe.description))
    print(*tables.plan_lines(facts), sep="\n")


@app.command("eval")
def eval_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; several make one table.")],
    threat: Annotated[
        list[str] | None,
        typer.Option(metavar="NORM:EPS", help="Such as linf:8/255, repeatable; the recipe's if not given."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="PGD steps.")] = 20,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Only the first n test images.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images attacked at once.")] = 250,
    seed: Annotated[int, typer.Option(min=0, help="Of the attack's random starts.")] = 0,
    learners: Annotated[
        bool, typer.Option("--learners/--global", help="The learners too, or the global model only.")
    ] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack the models of a run on its test split: natural, PGD under each threat, their unions."""
    threats = [Threat.parse(text) for text in threat or []]
    reporter = make_reporter(quiet=quiet or as_json)
    attack = partial(
        evaluate_split, steps=steps, batch_size=batch_size, seed=seed, limit=n, progress=reporter.advance
    )  # fmt: skip
    found = [Run(folder) for folder in runs]
    names = [run.folder.resolve().name for run in found]
    records: dict[str, dict[str, Any]] = {}
    for run, name in zip(found, names, strict=True):
        title = name if names.count(name) == 1 else str(run.folder)
        models = run.models if learners else ["global"]
        records |= _evaluate_run(run, title, models, attack, threats, reporter)
    if as_json:
        print(json.dumps(records))
    else:
        images = sorted({record["images"] for record in records.values()})
        tables.show(tables.accuracy_table(records, title=f"test split, {' or '.join(map(str, images))} images"))


def _evaluate_run(
    run: Run,
    title: str,
    models: list[str],
    attack: Callable[..., Evaluation],
    threats: list[Threat],
    reporter: Reporter,
) -> dict[str, dict[str, Any]]:
    recipe = run.recipe
    threats = threats or list(recipe.validation.threats)
    split = load_data(recipe).test
    device = pick_device(recipe.training.device)
    if not models:
        raise UserError(f"{run.folder} has no model yet: it stopped before its first validation")
    records = {}
    for name in models:
        model = load(run.folder, name).to(device)
        with reporter.bar(f"{title}/{name}", 0, len(split)):
            evaluation = attack(model, split, threats=threats, workers=recipe.data.workers)
        records[f"{title}/{name}"] = evaluation.record() | {"split": "test", "selected_by": recipe.select}
    write_json(run.folder / "evaluation.json", records)
    return records


recipes_app = typer.Typer(help="The shipped recipes: listed, or one shown in full.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")


@recipes_app.callback()
def recipes_command(context: typer.Context, as_json: Json = False) -> None:
    """List the shipped recipes, or show one in full."""
    if context.invoked_subcommand is None:
        if as_json:
            print(json.dumps(recipe_names()))
        else:
            tables.show(tables.recipes_table(recipe_names()))


@recipes_app.command("show")
def recipes_show(recipe: RecipeName, set_: Set = None, as_json: Json = False) -> None:
    """Print a recipe with everything resolved."""
    loaded = load_recipe(recipe, set_ or [])
    print(json.dumps(loaded.plain()) if as_json else loaded.to_yaml().rstrip())


@app.command("doctor")
def doctor_command(
    recipe: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="Estimate what this recipe would cost here.")
    ] = "digits-generalist-t",
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Device, number formats, threads, data found, and a five-second probe of what a recipe would cost."""
    probe = estimate(load_recipe(recipe, set_ or []))  # before the data of other recipes counts as memory
    facts = examine()
    if as_json:
        print(json.dumps({**facts, "probe": probe}))
    else:
        tables.show(tables.machine_table(facts))
        tables.show(tables.probe_table(probe))


def _complain(text: str) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
    else:
        print(f"error: {text}", file=sys.stderr)


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _usage(error: Any) -> str:
    """The parser's complaint in one line, with where to read more."""
    where = error.ctx.command_path if error.ctx else "generalist"
    return f"{' '.join(error.format_message().split()).removesuffix('.')}; see {where} --help"


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    warnings.showwarning = _warn  # type: ignore[assignment]
    try:
        code = app(prog_name="generalist", standalone_mode=False)
    except (UserError, UsageError) as error:
        _complain(str(error) if isinstance(error, UserError) else _usage(error))
        code = 2
    except RunError as error:
        _complain(str(error))
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        _complain(str(error))
        code = 1
    sys.exit(code)
