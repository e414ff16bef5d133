"""What an evaluation is aimed at: the models of a run, a saved model, or anybody's model."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from generalist.api import load
from generalist.build import load_data
from generalist.core.errors import UserError
from generalist.core.files import digest
from generalist.core.threat import Threat
from generalist.data import DATASETS, Split, load_dataset
from generalist.models import build_model, load_weights
from generalist.run import Run
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


def cache_folder() -> Path:
    """$GENERALIST_CACHE, or evaluations/ in the user's cache."""
    return Path(os.environ.get("GENERALIST_CACHE") or Path.home() / ".cache" / "generalist" / "evaluations")


def run_targets(runs: Sequence[Path], threats: Sequence[Threat], *, learners: bool) -> Iterator[Target]:
    """The global model of each run, and its learners if asked."""
    found = [Run(folder) for folder in runs]
    names = [run.folder.resolve().name for run in found]
    for run, name in zip(found, names, strict=True):
        recipe = run.recipe
        title = name if names.count(name) == 1 else str(run.folder)
        wanted = _models(run, learners=learners)
        split, device = load_data(recipe).test, pick_device(recipe.training.device)
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


def model_target(
    path: Path | None, name: str | None, weights: Path | None, data: str, threats: Sequence[Threat], *, device: str
) -> Target:
    """A saved model file, or `module:callable` (or a network's name) with its weights."""
    if not threats:
        raise UserError("a model that is not a run needs its threats, such as --threat linf:8/255")
    split, classes = _data(data)
    if path is not None:
        model, title = load(path), path.stem
        weights = path.with_suffix(".safetensors")
    else:
        assert name is not None
        channels, height, _ = split.shape
        model, title = build_model(name, classes=classes, channels=channels, size=height), name
        if weights is not None:
            load_weights(model, weights)
    about = {"data": data, "split": "test", "weights": _weights(weights) if weights is not None else None}
    return Target(title, model.eval().to(pick_device(device)), split, threats, cache_folder(), 0, about)


def _weights(path: Path) -> dict[str, str]:
    """Which file a model came from."""
    return {"path": str(path.resolve()), "sha256": digest(path.read_bytes())}


def _data(data: str) -> tuple[Split, int]:
    """A dataset's name, an .npz file or a folder of images: its test split and the number of its classes."""
    path = Path(data)
    if data not in DATASETS.names() and (path.suffix == ".npz" or path.is_dir()):
        dataset = load_dataset("npz" if path.suffix == ".npz" else "folder", root=path)
    else:
        dataset = load_dataset(data)
    return dataset.test, len(dataset.classes)
