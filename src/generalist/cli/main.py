"""The command line: thin, and the only place that exits."""

import io
import json
import os
import shlex
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from generalist.core.errors import RunError, UserError, one_line, shown
from generalist.core.files import sealed, user_path, write_atomically, write_json
from generalist.core.threat import Threat
from generalist.distributed import ranks
from generalist.distributed.ranks import is_main, joined_ranks, launched_processes
from generalist.evaluation import SUITE_NAMES, Suite, SuiteResult, evaluate_suite, load_suite, save_attacked
from generalist.recipes.catalogue import load_recipe, recipe_names, recipe_parts
from generalist.recipes.schema import Recipe
from generalist.report import layouts, tables
from generalist.report.console import Reporter, make_reporter
from generalist.runs.compare import compare
from generalist.runs.doctor import estimate, examine, outline
from generalist.runs.experiment import build
from generalist.runs.targets import Target, foreign_target, run_targets, saved_target
from generalist.runs.train import train
from generalist.training.guards import Interrupted
from generalist.version import __version__

UsageError: Any = typer.BadParameter.__base__
"""What the parser of arguments raises; typer has no public name for it."""

app = typer.Typer(
    help="Robust image classifiers: trained, attacked and explained.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _read(given: Any) -> Any:
    """A path that is to be read, or several; none where none was given."""
    return [user_path(path) for path in given] if isinstance(given, list) else given and user_path(given)


def _data(given: str) -> str:
    user_path(given)
    return given


def _written(given: Path | None) -> Path | None:
    """A file or folder that is to be written, looked at before anything long begins."""
    if given is None:
        return None
    path = user_path(given)
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise UserError(f"{shown(str(path))} cannot be written: {shown(str(nearest))} is not a folder")
    return path


def _written_file(given: Any) -> Any:
    """The same of a file alone; - is standard output."""
    path = given if given in (None, "-") else _written(Path(given))
    if isinstance(path, Path) and path.is_dir():
        raise UserError(f"{shown(str(path))} is a folder; give a file to write")
    return path if given is None or isinstance(given, Path) else str(path)


MOST_IMAGES = 1_000_000_000
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results.")]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON on standard output.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a recipe field, such as training.epochs=10; repeatable."),
]
Root = Annotated[
    Path | None,
    typer.Option(help="The folder that has the data; $GENERALIST_DATA, else ~/.cache/generalist, if not given."),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch missing data from its official source.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]
Method = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="For a setting, or a file that extends one: which method."),
]


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
    method: Method = None,
    out: Annotated[
        Path | None, typer.Option(callback=_written, help="The run folder; runs/<name> if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    root: Root = None,
    download: Download = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; train and write nothing.")] = False,
    processes: Annotated[
        int | None,
        typer.Option("--ranks", min=1, max=4096, help="With --dry-run: where so many ranks would have the learners."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a recipe into a run folder."""
    loaded = _with_root(load_recipe(recipe, set_ or [], method=method), root)
    if dry_run:
        _show_plan(loaded, download=download, as_json=as_json, processes=processes or ranks.world())
        return
    if processes is not None:
        raise UserError("--ranks goes with --dry-run; to train with several start them with torchrun")
    folder = out or Path("runs") / loaded.name
    reporter = make_reporter(quiet=quiet or as_json or not is_main())
    try:
        run = train(loaded, out=folder, resume=resume, download=download, reporter=reporter)
    except Interrupted as stopped:
        changes = [part for change in set_ or [] for part in ("--set", change)]
        changes += ["--method", method] if method else []
        changes += [] if root is None else ["--root", str(root)]
        again = shlex.join(["generalist", "train", recipe, *changes, "--out", str(folder), "--resume"])
        _complain(f"{stopped}: stopped after a whole step, nothing is lost; go on with: {again}")
        raise typer.Exit(stopped.exit_code) from None
    if as_json:
        print(json.dumps({"run": str(run.folder), **run.summary}))
    elif not quiet:
        tables.show(tables.run_table(run.summary, steps=run.recipe.validation.steps))
        again = shlex.join(["generalist", "eval", str(run.folder)])
        print(f"run folder: {run.folder}\nattack the test split with: {again}")


def _with_root(recipe: Recipe, root: Path | None) -> Recipe:
    if root is None:
        return recipe
    found_anywhere = str(user_path(root).resolve())
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": found_anywhere})})


def _show_plan(recipe: Recipe, *, download: bool, as_json: bool, processes: int) -> None:
    facts = outline(build(recipe, download=download), ranks=processes)
    if as_json:
        print(json.dumps(facts))
        return
    tables.show(tables.plan_table(facts, description=recipe.description))
    print(*tables.plan_lines(facts), sep="\n")


@app.command("eval")
def eval_command(
    target: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TARGET", callback=_read, help="Run folders, or one saved model file."),
    ] = None,
    suite: Annotated[str, typer.Option(help=f"{', '.join(SUITE_NAMES)}, or a YAML file.")] = "pgd20",
    threat: Annotated[
        list[str] | None,
        typer.Option(metavar="NORM:EPS", help="Such as linf:8/255, repeatable; a run's own if not given."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Anybody's model: module:callable or a network's name.")] = None,
    weights: Annotated[
        Path | None, typer.Option(callback=_read, help="Its weights: .safetensors, .pt, .pth, .ckpt, .model.")
    ] = None,
    data: Annotated[
        str, typer.Option(callback=_data, help="For a model that is no run: a dataset, an .npz file or a folder.")
    ] = "",
    root: Root = None,
    download: Download = False,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="The side of the images that --model takes; theirs if not given."),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="How many classes --model has; as many as the data if not given."),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="What --model subtracts from pixels in 0..1, if it does not.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="What --model divides them by, if it does not.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", "--images", min=1, max=MOST_IMAGES, help="Only the first n test images.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Images attacked at once; no verdict depends on it.")
    ] = 250,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of everything random in the attacks.")] = 0,
    learners: Annotated[
        bool | None, typer.Option("--learners/--global", help="A run's learners too, or its global model only.")
    ] = None,
    device: Annotated[str, typer.Option(help="For a model that is no run.")] = "auto",
    save_adv: Annotated[
        Path | None, typer.Option(callback=_written_file, help="Write the attacked images to this .npz file.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", callback=_written_file, help="The record, to a file.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Attack a model: a run's, a saved one, or anybody's."""
    threats = [Threat.parse(text) for text in threat or []]
    chosen = load_suite(suite)
    reporter = make_reporter(quiet=quiet or json_file == "-" or not is_main())
    files = [path for path in target or [] if path.is_file()]
    if model is None and not target:
        raise UserError("nothing to evaluate: give a run folder, a model file, or --model with --weights and --data")
    if model is None:
        _only_for_models(weights=weights, size=size, classes=classes, mean=mean, std=std)
    if model is not None or files:
        if (model is not None and target) or len(target or []) > 1:
            raise UserError("one model at a time: several targets must all be run folders")
        if not data:
            raise UserError("a model that is not a run needs --data: a dataset's name, an .npz file or a folder")
        if model is None:
            one = saved_target(files[0], data, threats, device=device, root=root, download=download)
        else:
            one = foreign_target(
                model, weights, data, threats, device=device, root=root, download=download, size=size, classes=classes,
                mean=_channel_values("--mean", mean), std=_channel_values("--std", std),
            )  # fmt: skip
        aimed = iter([one])
    elif data:
        if target and not target[0].is_dir():
            raise UserError(f"there is no model file {target[0]}")
        raise UserError(
            f"--data {data} with a run folder, which has its own test split; give one of its model files, such as "
            f"{(target or [Path()])[0] / 'models' / 'global.safetensors'}"
        )
    else:
        every = suite == "pgd20" if learners is None else learners
        aimed = run_targets(target or [], threats, learners=every, root=root, download=download)
    records, results = {}, {}
    unwritten: list[RunError] = []
    for one in aimed:
        result = _attack(one, chosen, n, batch_size, seed, save_adv is not None, reporter)
        result = replace(result, flags=(*one.flags, *result.flags))
        results[one.title] = result
        records[one.title] = sealed(result.record() | (one.about or {}))
        if is_main() and (one.cache.parent / "recipe.yaml").is_file():
            try:
                write_json(one.cache / f"{one.title.rsplit('/')[-1]}-{chosen.name}.json", records[one.title])
            except RunError as error:  # the result is shown all the same
                unwritten.append(error)
    if not is_main():
        return
    if save_adv is not None:
        save_attacked(save_adv, results)
    if json_file == "-":
        print(json.dumps(records))
    else:
        if json_file is not None:
            write_json(Path(json_file), records)
        for table in tables.attacked_tables(records):
            tables.show(table)
        for title, record in records.items():
            for flag in record["red_flags"]:
                print(f"red flag, {title}: {flag['message']}")
    if unwritten:
        raise unwritten[0]


def _attack(
    target: Target, suite: Suite, n: int | None, batch_size: int, seed: int, keep: bool, reporter: Reporter
) -> SuiteResult:
    try:
        with reporter.bar(target.title, 0, min(len(target.split), n or len(target.split))):
            return evaluate_suite(
                target.model, target.split, suite, threats=target.threats, seed=seed, batch_size=batch_size, limit=n,
                workers=target.workers, cache=target.cache, keep_images=keep, progress=reporter.stage,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = "verdicts so far are kept: the same command goes on from here"
        _complain(f"interrupted; {'with --save-adv nothing is kept until the end' if keep else kept}")
        raise


def _only_for_models(**given: Any) -> None:
    for option, value in given.items():
        if value is not None:
            raise UserError(f"--{option} goes with --model; runs and saved model files have their own")


def _channel_values(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: numbers with commas between them, such as 0.485,0.456,0.406") from None


@app.command("compare")
def compare_command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", callback=_read, help="Run folders that `eval` has a record of.")
    ],
    paper: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Beside ours: a table of Generalist++ (I to IV) or CVPR 2023 (1a to 5)."),
    ] = None,
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="The strongest all runs have if not given.")] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", callback=_written_file, help="Plain numbers, one row a run.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", callback=_written_file, help="Everything, to a file.")
    ] = None,
    latex_file: Annotated[
        Path | None, typer.Option("--latex", metavar="FILE", callback=_written_file, help="A booktabs tabular.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", callback=_written_file, help="A Markdown table.")
    ] = None,
    scatter_file: Annotated[
        Path | None,
        typer.Option("--scatter", metavar="FILE.png", callback=_written_file, help="Natural against robust accuracy."),
    ] = None,
) -> None:
    """Put evaluated runs side by side; nothing is trained or attacked again."""
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


recipes_app = typer.Typer(help="The shipped recipes: listed, or one shown in full.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")


@recipes_app.callback()
def recipes_command(context: typer.Context, as_json: Json = False) -> None:
    """List the shipped recipes, or show one in full."""
    if context.invoked_subcommand is None:
        if as_json:
            print(json.dumps(recipe_names()))
        else:
            settings, methods = recipe_parts()
            tables.show(tables.parts_table("setting", settings))
            tables.show(tables.parts_table("method", methods))
            print("a recipe is <setting>-<method>, such as digits-generalist-t; show one with: generalist recipes show")


@recipes_app.command("show")
def recipes_show(recipe: RecipeName, set_: Set = None, method: Method = None, as_json: Json = False) -> None:
    """Print a recipe with everything resolved."""
    loaded = load_recipe(recipe, set_ or [], method=method)
    print(json.dumps(loaded.plain()) if as_json else loaded.to_yaml().rstrip())


@app.command("doctor")
def doctor_command(
    recipe: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="Estimate what this recipe would cost here.")
    ] = "digits-generalist-t",
    set_: Set = None,
    method: Method = None,
    root: Root = None,
    download: Download = False,
    as_json: Json = False,
) -> None:
    """Device, number formats, threads, data found, and a five-second probe of what a recipe would cost."""
    loaded = _with_root(load_recipe(recipe, set_ or [], method=method), root)
    probe = estimate(loaded, download=download)  # before the data of other recipes counts as memory
    facts = examine(root)
    if as_json:
        print(json.dumps({**facts, "probe": probe}))
    else:
        tables.show(tables.machine_table(facts))
        tables.show(tables.probe_table(probe))


def _complain(text: str) -> None:
    text = one_line(text)
    if int(os.environ.get("RANK", "0")) > 0:
        return  # the first rank speaks for all
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
    else:
        print(f"error: {text}", file=sys.stderr)


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    print(f"warning: {one_line(str(message))}", file=sys.stderr)


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # a path may hold bytes that are no UTF-8


def _usage(error: Any) -> str:
    """The parser's complaint in one line, with where to read more."""
    where = error.ctx.command_path if error.ctx else "generalist"
    return f"{' '.join(error.format_message().split()).removesuffix('.')}; see {where} --help"


def _json_to_stdout(arguments: list[str]) -> list[str]:
    """`eval` or `compare … --json` without a file means standard output, as it does for the other commands."""
    if arguments[:1] not in (["eval"], ["compare"]):
        return arguments
    following = [*arguments[1:], "--"]
    bare = [
        a == "--json" and ((b.startswith("-") and b != "-") or Path(b).is_dir())
        for a, b in zip(arguments, following, strict=True)
    ]
    return [part for a, b in zip(arguments, bare, strict=True) for part in ([a, "-"] if b else [a])]


def _too_large(error: Exception) -> bool:
    """Whether memory, Python's stack or a number's range was exceeded; torch has no type of its own for all of it."""
    said = str(error).lower()
    torch_says = ("can't allocate", "out of memory", "overflow", "invalid buffer size", "invalid size")
    return isinstance(error, MemoryError | RecursionError | OverflowError) or (
        isinstance(error, RuntimeError) and any(words in said for words in torch_says)
    )


def _print_anything() -> None:
    """Where the locale lacks a character (ℓ, γ), it is printed as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    warnings.showwarning = _warn  # type: ignore[assignment]
    _print_anything()
    try:
        with joined_ranks():
            if not is_main():
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
            code = app(_json_to_stdout(sys.argv[1:]), prog_name="generalist", standalone_mode=False)
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
    except Exception as error:
        if _too_large(error):
            _complain(f"too large for this machine: {str(error) or type(error).__name__}")
        elif launched_processes() == 1:
            raise
        else:
            traceback.print_exc()
        code = 1
    if launched_processes() > 1:  # gloo's threads may abort an orderly exit; all files are closed by now
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)
