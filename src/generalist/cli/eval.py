"""`generalist eval`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from generalist.cli import completing
from generalist.cli.analyses import check_analysis_options, eval_analysis
from generalist.cli.importing import importing
from generalist.cli.messages import complain
from generalist.cli.options import MOST_IMAGES, Download, Quiet, Root, figure_file, read_data, read_path, written_file
from generalist.core.errors import RunError, UserError, shown
from generalist.core.files import sealed, write_json
from generalist.core.names import ANALYSES, OOD, SUITE_NAMES

if TYPE_CHECKING:
    from generalist.evaluation import Suite, SuiteResult
    from generalist.report.console import Reporter
    from generalist.runs.targets import Target


def eval_command(
    target: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TARGET",
            callback=read_path,
            autocompletion=completing.runs,
            help="Run folders, or one saved model file.",
        ),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            autocompletion=completing.suites,
            help=f"{', '.join((*SUITE_NAMES, *ANALYSES))}, a YAML file, or module:callable.",
        ),
    ] = "pgd20",
    threat: Annotated[
        list[str] | None,
        typer.Option(metavar="NORM:EPS", help="Such as linf:8/255, repeatable; a run's own if not given."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Anybody's model: module:callable or a network's name.")] = None,
    weights: Annotated[
        Path | None, typer.Option(callback=read_path, help="Its weights: .safetensors, .pt, .pth, .ckpt, .model.")
    ] = None,
    rename: Annotated[
        str | None,
        typer.Option(metavar="order|OLD=NEW,…", help="Of --weights with other names: by order and shape, or as given."),
    ] = None,
    data: Annotated[
        str, typer.Option(callback=read_data, help="For a model that is no run: a dataset, an .npz file or a folder.")
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
        Path | None, typer.Option(callback=written_file, help="Write the attacked images to this .npz file.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", callback=written_file, help="The record, to a file.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(callback=figure_file, help="Of --suite curve or ood: all models, as .png or .svg.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Attack a model: a run's, a saved one, or anybody's."""
    with importing():
        from generalist.core.threat import Threat
        from generalist.distributed.ranks import is_main
        from generalist.evaluation import load_suite, save_attacked
        from generalist.report import tables
        from generalist.report.console import make_reporter
        from generalist.runs.evaluate import Unrecorded
        from generalist.runs.paths import RunPaths
        from generalist.runs.targets import foreign_target, run_targets, saved_target

    threats = [Threat.parse(text) for text in threat or []]
    check_analysis_options(suite, figure=figure, save_adv=save_adv)
    chosen = None if suite in ANALYSES else load_suite(suite)
    attacked = suite != OOD  # which needs no threats
    reporter = make_reporter(quiet=quiet or json_file == "-" or not is_main())
    files = [path for path in target or [] if path.is_file()]
    if model is None and not target:
        raise UserError("nothing to evaluate: give a run folder, a model file, or --model with --weights and --data")
    if model is None:
        _only_for_models(weights=weights, rename=rename, size=size, classes=classes, mean=mean, std=std)
    if model is not None or files:
        if (model is not None and target) or len(target or []) > 1:
            raise UserError("one model at a time: several targets must all be run folders")
        if not data:
            raise UserError("a model that is not a run needs --data: a dataset's name, an .npz file or a folder")
        if model is None:
            one = saved_target(files[0], data, threats, device=device, root=root, download=download, attacked=attacked)
        else:
            one = foreign_target(
                model, weights, data, threats, rename=_renames(rename), device=device, root=root,
                download=download, size=size, classes=classes,
                mean=_channel_values("--mean", mean), std=_channel_values("--std", std), attacked=attacked,
            )  # fmt: skip
        aimed = iter([one])
    elif data:
        if target and not target[0].is_dir():
            raise UserError(f"there is no model file {target[0]}")
        raise UserError(
            f"--data {data} with a run folder, which has its own test split; give one of its model files, such as "
            f"{RunPaths((target or [Path()])[0]).model_file()}"
        )
    else:
        every = suite == "pgd20" if learners is None else learners
        aimed = run_targets(target or [], threats, learners=every, root=root, download=download)
    if chosen is None:
        eval_analysis(
            suite, aimed, images=n, batch_size=batch_size, seed=seed, json_file=json_file, figure=figure,
            reporter=reporter,
        )  # fmt: skip
        return
    results, unwritten = {}, list[RunError]()
    for one in aimed:
        try:
            results[one.title] = _attack(one, chosen, n, batch_size, seed, save_adv is not None, reporter)
        except Unrecorded as error:  # the result is shown all the same
            results[one.title] = error.result
            unwritten.append(error)
    records = {title: sealed(result.record()) for title, result in results.items()}
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
    target: "Target", suite: "Suite", n: int | None, batch_size: int, seed: int, keep: bool, reporter: "Reporter"
) -> "SuiteResult":
    from generalist.runs.evaluate import evaluate_target

    try:
        return evaluate_target(
            target, suite, images=n, batch_size=batch_size, seed=seed, keep_images=keep, reporter=reporter
        )
    except KeyboardInterrupt:
        kept = "verdicts so far are kept: the same command goes on from here"
        complain(f"interrupted; {'with --save-adv nothing is kept until the end' if keep else kept}")
        raise


def _only_for_models(**given: Any) -> None:
    for option, value in given.items():
        if value is not None:
            raise UserError(f"--{option} goes with --model; runs and saved model files have their own")


def _renames(text: str | None) -> Any:
    if text in (None, "order"):
        return text
    pairs = [part.split("=") for part in str(text).split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise UserError(f"--rename {shown(text)}: order, or old=new with commas between, such as features.0=conv1")
    return dict(pairs)


def _channel_values(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: numbers with commas between them, such as 0.485,0.456,0.406") from None
