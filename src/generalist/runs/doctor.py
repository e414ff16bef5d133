"""What this machine can do, and what a recipe would cost on it."""

import os
import platform
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from generalist.attacks import frozen
from generalist.core.errors import UserError
from generalist.data import DATASETS, OWN_ROOT, SOURCES, ArraySplit, MissingData, load_dataset, sequential_batches
from generalist.data.locate import data_root
from generalist.evaluation import evaluate_split
from generalist.models.modules import describe
from generalist.recipes.cost import cost_in_at
from generalist.recipes.schema import Recipe
from generalist.runs.experiment import Experiment, build
from generalist.runs.train import placed
from generalist.training.placement import speed_up
from generalist.training.precision import pick_device, pick_precision

PROBE_SECONDS = 5.0


def examine(root: Path | None = None) -> dict[str, Any]:
    """Device, number formats, threads, data."""
    device = pick_device()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "precision_auto": str(pick_precision("auto", device)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "data_root": str(data_root(root)),
        "data": {name: _data_state(name, root) for name in DATASETS.names() if name not in OWN_ROOT},
    }


def _data_state(name: str, root: Path | None) -> str:
    try:
        dataset = load_dataset(name, root=root)
    except MissingData:
        return f"not found; {'train --download fetches it' if name in SOURCES else 'get it by hand'}"
    except UserError as error:
        return f"unusable: {error}"
    return f"{len(dataset.train) + len(dataset.validation)} train and {len(dataset.test)} test images"


def outline(experiment: Experiment, *, ranks: int = 1) -> dict[str, Any]:
    """What a recipe would do here: the learners, their weights over training, when they are reset, and who has them."""
    recipe, plan = experiment.recipe, experiment.plan
    learners = {
        name: {
            "objective": section.objective.name,
            "threat": str(section.objective.options.get("threat", "–")),
            "optimizer": section.optimizer.name,
            "lr": section.optimizer.options["lr"],
            "gamma": [round(plan.weights(min(plan.steps - 1, plan.steps * k // 6))[name], 3) for k in range(7)],
            "live_epochs": plan.active_epochs(name, since=recipe.first_epoch),
            **_part(experiment, name),
        }
        for name, section in recipe.learners.items()
    }
    ends = {epoch: epoch * plan.steps_per_epoch - 1 for epoch in range(1, plan.epochs)}
    stretches = placed(experiment, ranks)
    placement = [
        {"first_epoch": p.first_epoch, "epochs": p.epochs, "ranks": {name: list(p.ranks[name]) for name in p.costs}}
        for p in stretches
    ]
    return {
        "recipe": recipe.name,
        "ranks": ranks,
        "placement": placement,
        "speed_up": round(speed_up(stretches), 3),
        "images": {part: len(getattr(experiment.dataset, part)) for part in ("train", "validation", "test")},
        "epochs": plan.epochs,
        "steps_per_epoch": plan.steps_per_epoch,
        "resets_after_epochs": [epoch for epoch, last in ends.items() if plan.redistributes_after(last)],
        "cost_in_at": round(cost_in_at(recipe, plan, experiment.depths), 3),
        "device": str(experiment.device),
        "precision": str(experiment.precision).removeprefix("torch."),
        "learners": learners,
    }


def _part(experiment: Experiment, name: str) -> dict[str, Any]:
    """The first and last epoch of a learner, and its modules and their parameters if it does not train everything."""
    learner, (first, end) = experiment.state.learners[name], experiment.recipe.window(name)
    sizes = {key: parameter.numel() for key, parameter in learner.model.named_parameters() if key in learner.own}
    trains = {"modules": describe(learner.model, learner.own), "parameters": sum(sizes.values())}
    return {"epochs": [first + 1, end], "trains": trains if learner.frozen_tree else None}


def estimate(recipe: Recipe, *, download: bool = False) -> dict[str, Any]:
    """Time and memory of the whole run, from a few real steps of every learner and one small validation."""
    experiment = build(recipe, download=download)
    plan, state = experiment.plan, experiment.state
    budget = PROBE_SECONDS / (len(state.learners) + 1)
    step_seconds = {name: _time_steps(experiment, name, budget) for name in state.learners}
    live = {name: plan.active_epochs(name, since=recipe.first_epoch) for name in state.learners}
    training = sum(seconds * live[name] * plan.steps_per_epoch for name, seconds in step_seconds.items())
    validation = _time_validation(experiment, budget, live)
    return {
        "recipe": recipe.name,
        "device": str(experiment.device),
        "precision": str(experiment.precision).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "epochs": plan.epochs,
        "steps": plan.steps,
        "learners": {name: _part(experiment, name) for name in state.learners},
        "parameters": sum(p.numel() for p in state.global_model.parameters()),
        "cost_in_at": round(cost_in_at(recipe, plan, experiment.depths), 3),
        "step_seconds": {name: round(seconds, 5) for name, seconds in step_seconds.items()},
        "training_seconds": round(training, 1),
        "validation_seconds": round(validation, 1),
        "total_seconds": round(training + validation, 1),
        "peak_memory_mib": round(_peak_bytes(experiment.device) / 2**20),
    }


def _time_steps(experiment: Experiment, name: str, budget: float) -> float:
    """The median step, the first one left out where there are others."""
    learner, plan = experiment.state.learners[name], experiment.plan
    batch = next(experiment.feed(experiment.state.step))
    taken: list[float] = []
    while not taken or (sum(taken) < budget and len(taken) < 20):
        started = time.perf_counter()
        learner.step(batch, progress=plan.progress(0), key=("doctor", len(taken)))
        _synchronise(experiment.device)
        taken.append(time.perf_counter() - started)
    return median(taken[1:] or taken)


def _time_validation(experiment: Experiment, budget: float, live: Mapping[str, float]) -> float:
    """A validation of a few images, scaled to all validations of all models.

    The model's own answers are the labels: only images that a model gets right are attacked, and a trained model gets
    most of them right, an untrained one hardly any.
    """
    validation, plan, model = experiment.recipe.validation, experiment.plan, experiment.state.global_model
    whole = experiment.selection_split
    images = min(validation.images or len(whole), len(whole))
    count, seconds = min(8, images), 0.0
    while True:
        part = next(iter(sequential_batches(whole, batch_size=count, device=experiment.device, limit=count)))
        with frozen(model), torch.no_grad():
            answers = model(part.x).argmax(1).cpu()
        started = time.perf_counter()
        evaluate_split(
            model, ArraySplit(part.x.cpu(), answers), threats=validation.threats,
            steps=validation.steps, batch_size=validation.batch_size,
        )  # fmt: skip
        _synchronise(experiment.device)
        seconds = time.perf_counter() - started
        if count == images or seconds > budget / 4:
            break
        count = min(4 * count, images)
    epochs = plan.epochs - experiment.recipe.first_epoch
    models = 1 + sum(live.values()) / epochs
    return seconds / count * images * -(-epochs // validation.every_epochs) * models


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(device: torch.device) -> int:
    """Of the device where it has memory of its own, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
