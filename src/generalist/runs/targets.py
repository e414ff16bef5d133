"""What an evaluation is aimed at: a model of a run, a saved model, anybody's model, or a module at hand."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from generalist.models import Rename, build_model, load_weights, normalises_itself
from generalist.runs.experiment import load_data
from generalist.runs.folder import Run, load
from generalist.runs.images import Images, as_split, images_for
from generalist.runs.paths import GLOBAL
from generalist.training.precision import pick_device


@dataclass(frozen=True)
class Target:
    """One model with the images and threats it is judged by."""

    title: str
    model: nn.Module
    split: Split
    threats: Sequence[Threat]
    cache: Path | None
    workers: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    flags: Sequence[Flag] = ()
    run: Run | None = None  # that the model is of
    name: str = GLOBAL  # of the model in that run
    root: str | Path | None = None  # the folder that has the data, where it was said


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
        title = name if names.count(name) == 1 else str(run.folder)
        wanted = _models(run, learners=learners)
        split = load_data(run.recipe, download=download, root=root).test
        for model in wanted:
            yield _run_target(run, model, split, threats, title=f"{title}/{model}", root=root)


def run_target(
    run: Run, name: str, threats: Sequence[Threat], *, root: str | Path | None = None, download: bool = False
) -> Target:
    """One model of a run, on the test split of its data, under its own threats if none are given."""
    _models(run, learners=False)
    split = load_data(run.recipe, download=download, root=None if root is None else Path(root)).test
    return _run_target(run, name, split, threats, title=f"{run.folder.resolve().name}/{name}", root=root)


def _run_target(
    run: Run, name: str, split: Split, threats: Sequence[Threat], *, title: str, root: str | Path | None
) -> Target:
    recipe, model = run.recipe, load(run.folder, name)
    about = {
        "data": recipe.data.name,
        "split": "test",
        "selected_by": recipe.select,
        "weights": _weights(run.model_file(name)),
    }
    device = pick_device(recipe.training.device)
    return Target(
        title,
        model.to(device),
        split,
        threats or recipe.validation.threats,
        run.evaluations,
        recipe.data.workers,
        about,
        run=run,
        name=name,
        root=recipe.data.root if root is None else root,
    )


def _models(run: Run, *, learners: bool) -> list[str]:
    """The names of the models to evaluate; one that the run must have and has not is missed, never replaced."""
    if not run.models and not run.finished:
        raise UserError(f"{run.folder} has no model yet: it stopped before its first validation")
    kept = [name for name, selected in run.summary["selected"].items() if selected] if run.finished else []
    wanted = list(dict.fromkeys([GLOBAL, *run.models, *kept])) if learners else [GLOBAL]
    for name in wanted:
        if name not in run.models:
            missing = run.model_file(name).relative_to(run.folder)
            raise UserError(f"{run.folder} has no {missing}; restore it, or train the run again")
    return wanted


def module_target(
    model: nn.Module,
    data: str | Path | Images,
    threats: Sequence[Threat],
    *,
    root: str | Path | None = None,
    size: int | None = None,
    download: bool = False,
    attacked: bool = True,
) -> Target:
    """A module at hand, where it is, on named or given images. Nothing is kept unless a cache is named."""
    _check_threats(threats, attacked)
    if isinstance(data, str | Path):
        split = images_for(model, data, root=root, size=size, download=download).split
        about = {"data": str(data), "split": "test", "weights": None}
    else:
        split, about = as_split(data), {}
    return Target(type(model).__name__, model, split, threats, None, about=about, root=root)


def saved_target(
    path: Path,
    data: str | Path | Images,
    threats: Sequence[Threat],
    *,
    device: str,
    root: str | Path | None,
    download: bool,
    attacked: bool = True,
) -> Target:
    """A saved model file, on images as its card wants them; threats are needed where it is attacked."""
    _check_threats(threats, attacked)
    model = load(path)
    if isinstance(data, str | Path):
        split = images_for(model, data, root=root, download=download).split
    else:
        data, split = "", as_split(data)
    weights = path.with_suffix(".safetensors")
    return _target(path.stem, model, split, threats, str(data), device=device, weights=weights, root=root)


def foreign_target(
    name: str,
    weights: Path | None,
    data: str,
    threats: Sequence[Threat],
    *,
    device: str,
    rename: Rename | None = None,
    root: Path | None = None,
    download: bool = False,
    size: int | None = None,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    attacked: bool = True,
) -> Target:
    """`module:callable` (or a network's name) with its weights, built for the images it is given."""
    _check_threats(threats, attacked)
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
        load_weights(model, weights, rename=rename)
    if images.origin is not None and not images.numbered:
        _check_classes(model, images, data)
    target = _target(name, model, images.split, threats, data, device=device, weights=weights, root=root)
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


def _check_threats(threats: Sequence[Threat], attacked: bool) -> None:
    if attacked and not threats:
        raise UserError(
            "a model that is not a run needs its threats, such as linf:8/255", command="--threat linf:8/255"
        )


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
    root: str | Path | None,
) -> Target:
    about = {"data": data, "split": "test", "weights": _weights(weights) if weights is not None else None}
    return Target(title, model.eval().to(pick_device(device)), split, threats, cache_folder(), about=about, root=root)
