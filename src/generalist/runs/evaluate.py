"""A model under attack: any model, or one of a run, which then keeps the record."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from generalist.core.errors import RunError, UserError
from generalist.core.files import user_path
from generalist.core.names import ANALYSES, OOD
from generalist.core.threat import Threat
from generalist.distributed import ranks
from generalist.evaluation import Suite, SuiteResult, evaluate_suite, load_suite
from generalist.report.console import Reporter, Silent, make_reporter
from generalist.runs.analyses import AnalysisResult, analysis_named, keep_analysis
from generalist.runs.folder import Run
from generalist.runs.images import Images
from generalist.runs.paths import GLOBAL, RunPaths
from generalist.runs.targets import Target, module_target, run_target, saved_target


class Unrecorded(RunError):
    """The record could not be written; `result` has the figures all the same."""

    def __init__(self, message: str, result: SuiteResult) -> None:
        super().__init__(message)
        self.result = result


def evaluate(
    model: nn.Module | Run | str | Path,
    data: str | Path | Images | None = None,
    *,
    threats: str | Threat | Sequence[str | Threat] = (),
    suite: str | Suite = "pgd20",
    name: str = GLOBAL,
    images: int | None = None,
    batch_size: int = 250,
    seed: int = 0,
    cache: str | Path | None = None,
    root: str | Path | None = None,
    size: int | None = None,
    download: bool = False,
    device: str = "auto",
    progress: bool = False,
) -> SuiteResult | AnalysisResult:
    """Attack a model; of a run, keep the record, as `generalist eval` does.

    Args:
        model: A module that takes images [N, C, H, W] in [0, 1] and returns logits [N, K]; a run or its folder; or a
            model file that a run or `save_model` wrote.
        data: A dataset's name (its test split is used), an `.npz` file or a folder of images, a `DataLoader`, a torch
            `Dataset`, or a pair (images [N, C, H, W], labels [N]) of tensors or arrays. A run has its own test split.
        threats: Norm and radius in pixel units, such as `"linf:8/255"`, or several; a run's own if none are given.
        suite: `pgd20`, `quick`, `autoattack`, `paper`, a YAML file, or a `Suite`; `curve` for accuracy against ε;
            `ood` for corruptions and perturbation sequences, which needs no threats.
        name: Which model of a run: `global`, or the name of a learner.
        images: Only the first so many images.
        batch_size: Images attacked at once; no verdict depends on it.
        seed: Of everything random in the attacks.
        cache: A folder for verdicts, so that an interrupted evaluation goes on where it stopped. A run has its own.
        root: The folder that has the data.
        size: The side in pixels at which images are read for a module that does not say its own.
        download: Fetch missing data from its official source.
        device: Where a model file is run. A module stays where it is.
        progress: Show progress, with the time left, on standard error.

    Returns:
        A verdict per image, attack and threat; `print(result)` is a table, `result.record()` is the JSON record.
        Of `curve`: the smallest distance per image and threat at which it is misclassified. Of `ood`: a verdict per
        image, corruption and severity, and per sequence the frames that are right and the steps that flip.

    Example:
        >>> import generalist
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> result = generalist.evaluate(model, "digits", threats="linf:1/10", images=20)
        >>> result.record()["images"]
        20
        >>> drawn = generalist.evaluate(model, "digits", suite="ood", images=20).record()
        >>> len(drawn["corruptions"]), len(drawn["corruptions"]["fog"]), len(drawn["sequences"])
        (15, 5, 10)
    """
    if images is not None and images < 1:
        raise UserError(f"images must be at least 1, got {images}")
    given = [threats] if isinstance(threats, str | Threat) else threats
    balls = [Threat.parse(threat) for threat in given]
    chosen = suite if isinstance(suite, Suite) or suite in ANALYSES else load_suite(suite)
    target = _target(
        model, data, balls, name=name, root=root, size=size, download=download, device=device, attacked=chosen != OOD
    )
    if not len(target.split):
        raise UserError("there are no images to evaluate on; give at least one")
    if cache is not None:
        target = replace(target, cache=user_path(cache))
    reporter = make_reporter(quiet=not progress)
    if not isinstance(chosen, Suite):
        analysis = analysis_named(chosen)
        result = analysis.measure(target, images=images, batch_size=batch_size, seed=seed, reporter=reporter)
        try:
            ranks.run_on_main(lambda: keep_analysis(target, analysis, result))
        except RunError as error:
            warnings.warn(str(error), stacklevel=2)
        return result
    try:
        return evaluate_target(target, chosen, images=images, batch_size=batch_size, seed=seed, reporter=reporter)
    except Unrecorded as error:
        warnings.warn(str(error), stacklevel=2)
        return error.result


def _target(
    model: Any,
    data: Any,
    threats: Sequence[Threat],
    *,
    name: str,
    device: str,
    size: int | None,
    attacked: bool,
    **where: Any,
) -> Target:
    if isinstance(model, nn.Module):
        if data is None:
            raise UserError("a module needs images: give data, such as the name of a dataset")
        return module_target(model, data, threats, size=size, attacked=attacked, **where)
    if not isinstance(model, Run | str | Path):
        raise UserError(f"a {type(model).__name__} cannot be evaluated; give a torch.nn.Module that returns logits")
    path = model.folder if isinstance(model, Run) else user_path(model)
    if path.is_dir():
        if data is not None:
            raise UserError(
                f"{path} is a run folder, which has its own test split; give one of its model files for other images,"
                f" such as {RunPaths(path).model_file()}"
            )
        return run_target(Run(path), name, threats, **where)
    if data is None:
        raise UserError(f"{path} is a model file and needs images: give data, such as the name of a dataset")
    return saved_target(path, data, threats, device=device, attacked=attacked, **where)


def evaluate_target(
    target: Target,
    suite: Suite,
    *,
    images: int | None = None,
    batch_size: int = 250,
    seed: int = 0,
    keep_images: bool = False,
    reporter: Reporter | None = None,
) -> SuiteResult:
    """Attack one target; a run gets its record, written by the main rank.

    Raises:
        Unrecorded: The run folder cannot be written to; the error has the result.
    """
    reporter = reporter if reporter is not None and ranks.is_main() else Silent()
    with reporter.bar(target.title, 0, min(len(target.split), images or len(target.split))):
        result = evaluate_suite(
            target.model, target.split, suite, threats=target.threats, seed=seed, batch_size=batch_size, limit=images,
            workers=target.workers, cache=target.cache, keep_images=keep_images, progress=reporter.stage,
        )  # fmt: skip
    result = replace(result, flags=(*target.flags, *result.flags), about=target.about)
    if target.run is not None and ranks.is_main():
        try:
            target.run.write_record(result, target.name)
        except RunError as error:
            raise Unrecorded(str(error), result) from None
    return result
