"""What trials will take on this machine: a few passes are timed, all others are counted."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from generalist.attacks import attack_view, cross_entropy, loss_and_gradient
from generalist.core.files import fingerprint
from generalist.data.sizes import SIZES
from generalist.evaluation import Suite
from generalist.evaluation.standing import passes_per_image
from generalist.models import build_model
from generalist.models.modules import depth_below, tensor_names
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.cost import passes
from generalist.recipes.schema import Recipe
from generalist.recipes.shipped import recipe_names
from generalist.runs.experiment import load_data, planned
from generalist.runs.studies.plan import Trial
from generalist.runs.workers import one_thread
from generalist.training.precision import pick_device

PROBE_SECONDS = 0.5
RIGHT = 0.7
"""The share of the images that a model is expected to get right unattacked: only those are attacked."""


class Extent(NamedTuple):
    """Images to train on, held out and to attack, their shape (C, H, W), and the number of classes."""

    train: int
    held: int
    test: int
    shape: tuple[int, int, int]
    classes: int


@dataclass(frozen=True)
class Speed:
    """Seconds per image of a forward and backward pass: of a training step, and of a step of an attack."""

    train: float
    attack: float


OOD_PASSES = 530
"""Forward passes of an image: 19 corruptions at 5 severities, and 14 sequences of 31 frames."""


@dataclass(frozen=True)
class Seconds:
    """What a trial takes here."""

    training: float
    validation: float
    evaluation: float

    @property
    def total(self) -> float:
        return self.training + self.validation + self.evaluation


@dataclass
class Estimator:
    """Estimates of many trials, which share what is timed."""

    download: bool = False
    _speeds: dict[str, Speed] = field(default_factory=dict)
    _networks: dict[str, nn.Module] = field(default_factory=dict)
    _sizes: dict[str, Extent] = field(default_factory=dict)

    def __call__(self, trial: Trial) -> Seconds:
        """Of a trial from its beginning; with one thread, as trials are trained."""
        recipe = trial.recipe
        training, validation = self._training(recipe)
        return Seconds(training, validation, self._evaluation(recipe, trial))

    def _training(self, recipe: Recipe) -> tuple[float, float]:
        """Training and validation, with the networks that must be trained before."""
        size, network, speed = self._parts(recipe)
        share = 1.0 - (recipe.data.extra.share if recipe.data.extra else 0.0)
        batch = recipe.training.batch_size
        steps = max(1, -(-size.train // max(1, round(batch * share))))
        plan, trained, _ = planned(recipe, network, steps)
        depths = {name: depth_below(network, tensors or tensor_names(network)) for name, tensors in trained.items()}
        each = passes(recipe, depths)
        active = {name: float(plan.active_epochs(name, since=recipe.first_epoch)) for name in recipe.learners}
        images = steps * min(batch, size.train)
        training = sum(
            active[name] * images * (speed.train * min(1.0, each[name]) + speed.attack * max(0.0, each[name] - 1))
            for name in recipe.learners
        )
        chosen = recipe.validation
        judged = min(chosen.images or size.held, size.held) * (0.5 + RIGHT * len(chosen.threats) * chosen.steps)
        epochs = plan.epochs - recipe.first_epoch
        models = 1 + sum(active.values()) / epochs
        validation = judged * speed.attack * -(-epochs // chosen.every_epochs) * models
        for source in recipe.needs.values():
            if source in recipe_names():
                need = load_recipe(source)
                shared = {name: getattr(recipe, name) for name in ("model", "validation", "data")}
                before = self._training(need.model_copy(update=shared))
                training, validation = training + before[0], validation + before[1]
        return training, validation

    def _evaluation(self, recipe: Recipe, trial: Trial) -> float:
        size, _, speed = self._parts(recipe)
        images = min(trial.judged.images or size.test, size.test)
        per_image = sum(_passes(suite, size.classes) for suite in trial.judged.loaded)
        if trial.judged.ood:
            per_image += OOD_PASSES / len(recipe.validation.threats) / RIGHT
        return images * RIGHT * len(recipe.validation.threats) * per_image * speed.attack / 2

    def _parts(self, recipe: Recipe) -> tuple[Extent, nn.Module, Speed]:
        data = fingerprint([recipe.data.model_dump(mode="json"), recipe.seed])
        if data not in self._sizes:
            self._sizes[data] = self._size(recipe)
        size = self._sizes[data]
        key = fingerprint([recipe.model.model_dump(mode="json"), size.shape, size.classes])
        if key not in self._networks:
            self._networks[key] = _network(recipe, size)
        speed = fingerprint([key, recipe.training.batch_size, recipe.training.device])
        if speed not in self._speeds:
            device = pick_device(recipe.training.device)
            with one_thread():
                self._speeds[speed] = _speed(self._networks[key].to(device), size, recipe.training.batch_size, device)
        return size, self._networks[key], self._speeds[speed]

    def _size(self, recipe: Recipe) -> Extent:
        """As the recipe limits and resizes it. The files of the well-known datasets are not needed."""
        data = recipe.data
        known = SIZES.get(data.name)
        if known is None:
            loaded = load_data(recipe, download=self.download)
            channels, height, width = loaded.shape
            train, held, test = (len(split) for split in (loaded.train, loaded.validation, loaded.test))
            return Extent(train, held, test, (channels, height, width), len(loaded.classes))
        most = data.limit or known.train
        side = data.size or known.shape[1]
        held = round(known.train * data.validation)
        train, held, test = (min(most, count) for count in (known.train - held, held, known.test))
        return Extent(train, held, test, (known.shape[0], side, side), known.classes)


def _network(recipe: Recipe, size: Extent) -> nn.Module:
    model = recipe.model
    return build_model(
        model.name,
        classes=size.classes,
        channels=size.shape[0],
        size=size.shape[1],
        width=model.width,
        **model.options,
    )


def _speed(network: nn.Module, size: Extent, batch: int, device: torch.device) -> Speed:
    def train(x: torch.Tensor, y: torch.Tensor) -> None:
        network.zero_grad(set_to_none=True)
        F.cross_entropy(network(x), y).backward()

    def attack(x: torch.Tensor, y: torch.Tensor) -> None:
        loss_and_gradient(view, x, y, cross_entropy)

    network.train()
    trained = _timed(train, size, batch, device)
    network.zero_grad(set_to_none=True)
    network.eval()
    with attack_view(network) as view:
        attacked = _timed(attack, size, batch, device)
    return Speed(trained, attacked)


def _timed(work: Callable[[torch.Tensor, torch.Tensor], None], size: Extent, batch: int, device: torch.device) -> float:
    """Seconds per image, in batches as large as the time allows; of this process alone, where it computes itself."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    count, best = min(8, batch), float("inf")
    while True:
        x = torch.rand(count, *size.shape, generator=torch.Generator().manual_seed(0)).to(device)
        y = torch.arange(count, device=device) % size.classes
        for _ in range(2):  # the first one may have to prepare something
            started = clock()
            work(x, y)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = clock() - started
            best = min(best, seconds / count)
            if seconds > PROBE_SECONDS:
                return best
        if count == batch:
            return best
        count = min(2 * count, batch)


def _passes(suite: Suite, classes: int) -> float:
    """Of an image that is right unattacked, forward and backward each; half reach the later stages of a cascade."""
    first, *later = (passes_per_image(stage, classes) for stage in suite.stages)
    return first + sum(later) / (2 if suite.cascade else 1)


def estimates(trials: Mapping[str, Trial], *, download: bool = False) -> dict[str, Seconds]:
    """By the key of the trial."""
    estimator = Estimator(download)
    return {key: estimator(trial) for key, trial in trials.items()}
