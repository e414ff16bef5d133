"""What an evaluation is aimed at: the models of a run, a saved model, or anybody's model."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.core.errors import UserError
from generalist.core.files import digest
from generalist.core.threat import Threat
from generalist.data import EvaluationImages, Split, sequential_batches
from generalist.evaluation import Flag, no_weights
from generalist.models import build_model, load_weights, normalises_itself
from generalist.runs.evaluate import images_for, load
from generalist.runs.experiment import load_data
from generalist.runs.train import Run
from generalist.training.precision import pick_device


@dataclass(frozen=True)
class Target:
    """One model with the images and threats it is judged by."""

    title: str
    model: nn.Module
    split: Split
    threats: Sequence[Threat]
    cache: Path
    workers: int = 0
    about: dict[str, Any] | None = None
    flags: Sequence[Flag] = ()


def cache_folder() -> Path:
    """$GENERALIST_CACHE, or evaluations/ in the user's cache."""
    return Path(os.environ.get("GENERALIST_CACHE") or Path.home() / ".cache" / "generalist" / "evaluations")


def run_targets(
    runs: Sequence[Path],
    threats: Sequence[Threat],
    *,
    learners: bool,
    root: Path | None = None,
    download: bool = False,
) -> Iterator[Target]:
    """The global model of each run, and its learners if asked."""
    found = [Run(folder) for folder in runs]
    names = [run.folder.resolve().name for run in found]
    for run, name in zip(found, names, strict=True):
        recipe = run.recipe
        title = name if names.count(name) == 1 else str(run.folder)
        wanted = _models(run, learners=learners)
        split, device = load_data(recipe, download=download, root=root).test, pick_device(recipe.training.device)
        for model in wanted:
            yield Target(
                f"{title}/{model}",
                load(run.folder, model).to(device),
                split,
                threats or recipe.validation.threats,
                run.folder / "evaluations",
                recipe.data.workers,
                {
                    "data": recipe.data.name,
                    "split": "test",
                    "selected_by": recipe.select,
                    "weights": _weights(run.folder / "models" / f"{model}.safetensors"),
                },
            )


def _models(run: Run, *, learners: bool) -> list[str]:
    """The names of the models to evaluate; one that the run must have and has not is missed, never replaced."""
    if not run.models and not run.finished:
        raise UserError(f"{run.folder} has no model yet: it stopped before its first validation")
    kept = [name for name, selected in run.summary["selected"].items() if selected] if run.finished else []
    wanted = list(dict.fromkeys(["global", *run.models, *kept])) if learners else ["global"]
    for name in wanted:
        if name not in run.models:
            raise UserError(f"{run.folder} has no models/{name}.safetensors; restore it, or train the run again")
    return wanted


def saved_target(
    path: Path, data: str, threats: Sequence[Threat], *, device: str, root: Path | None, download: bool
) -> Target:
    """A saved model file, on images as its card wants them."""
    _check_threats(threats)
    model = load(path)
    images = images_for(model, data, root=root, download=download)
    weights = path.with_suffix(".safetensors")
    return _target(path.stem, model, images.split, threats, data, device=device, weights=weights)


def foreign_target(
    name: str,
    weights: Path | None,
    data: str,
    threats: Sequence[Threat],
    *,
    device: str,
    root: Path | None = None,
    download: bool = False,
    size: int | None = None,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Target:
    """`module:callable` (or a network's name) with its weights, built for the images it is given."""
    _check_threats(threats)
    images = images_for(None, data, root=root, size=size, download=download)
    channels, height, width = images.split.shape
    if height != width:
        raise UserError(f"{data}: images are {height}×{width}, a model is built for square ones; give --size")
    mean, std = (values if values is None or len(values) > 1 else [*values] * channels for values in (mean, std))
    count = len(images.classes) if classes is None else classes
    model = build_model(name, classes=count, channels=channels, size=height, mean=mean, std=std)
    if mean is not None and (own := normalises_itself(model)):
        raise UserError(f"{name} normalises images by its own {own!r}; leave --mean and --std out")
    if weights is not None:
        load_weights(model, weights)
    if images.origin is not None and not images.numbered:
        _check_classes(model, images, data)
    target = _target(name, model, images.split, threats, data, device=device, weights=weights)
    return target if weights is not None else replace(target, flags=(no_weights(name),))


def _check_classes(model: nn.Module, images: EvaluationImages, data: str) -> None:
    """Named classes are numbered in their order, which is right only where the model has just these."""
    try:
        with torch.no_grad(), frozen(model):
            out = model(next(sequential_batches(images.split, batch_size=2)).x)
    except Exception:
        return  # what is wrong with it is told when it is probed
    count = out.shape[-1] if isinstance(out, Tensor) and out.dim() == 2 else len(images.classes)
    if count != len(images.classes):
        raise UserError(
            f"{data} has {len(images.classes)} classes by name, the model tells {count} apart: which of them these are "
            f"is not known; give images of all its classes, or an .npz with numbered labels"
        )


def _check_threats(threats: Sequence[Threat]) -> None:
    if not threats:
        raise UserError("a model that is not a run needs its threats, such as --threat linf:8/255")


def _weights(path: Path) -> dict[str, str]:
    """Which file a model came from."""
    return {"path": str(path.resolve()), "sha256": digest(path.read_bytes())}


def _target(
    title: str,
    model: nn.Module,
    split: Split,
    threats: Sequence[Threat],
    data: str,
    *,
    device: str,
    weights: Path | None,
) -> Target:
    about = {"data": data, "split": "test", "weights": _weights(weights) if weights is not None else None}
    return Target(title, model.eval().to(pick_device(device)), split, threats, cache_folder(), 0, about)
