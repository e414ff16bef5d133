"""BatchNorm statistics of a dial's mixtures, measured on training images as the mixed learners saw them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from generalist.core.errors import unknown
from generalist.core.rng import derive
from generalist.core.threat import Threat
from generalist.core.types import Batch, StateTree
from generalist.data import Augment, Split, batches
from generalist.mixing import recalibrate_, statistics
from generalist.objectives import carries_state, make_objective, networks_needed
from generalist.recipes.schema import LearnerSection, Recipe
from generalist.recipes.values import Component
from generalist.runs.dial_endpoints import Endpoint

STEPS = 5
"""PGD steps of attacked inputs, where the recipe has no attack of its own."""
CLEAN = "clean"
"""Images as they are, among the inputs that `--batchnorm` names."""

Shares = Mapping[str, Mapping[str, float]]
"""For each tensor of statistics the share of each endpoint's inputs: positive, and 1 in sum."""


@dataclass(frozen=True)
class Inputs:
    """What BatchNorm is measured on: clean images, and what each objective feeds a model, all to equal parts."""

    clean: bool
    objectives: tuple[Component, ...] = ()

    @classmethod
    def of_task(cls, task: LearnerSection) -> "Inputs | None":
        """What a learner sees; None where its objective needs networks or a memory that a mixture does not have."""
        name = task.objective.name
        return None if networks_needed(name) or carries_state(name) else cls(False, (task.objective,))

    @classmethod
    def of_threats(cls, threats: Sequence[str], *, clean: bool, steps: int) -> "Inputs":
        """Clean images, and PGD under each threat."""
        return cls(clean, tuple(Component("adversarial", {"threat": one, "steps": steps}) for one in threats))

    def record(self) -> dict[str, Any]:
        return {"clean": self.clean, "fed_by": [objective.plain() for objective in self.objectives]}


@dataclass(frozen=True)
class Recalibration:
    """On which inputs the BatchNorm statistics of a mixture are measured.

    Attributes:
        inputs: by endpoint. A mixture has the average of the statistics on each, weighted as the endpoint is.
        batches: how many batches of training images.
        batch_size: of each.
        seed: of the batches and the attacks.
        augment: as in training.
        balance: as in training.
    """

    inputs: Mapping[str, Inputs]
    batches: int
    batch_size: int
    seed: int
    augment: Augment
    balance: float = 0.0

    @classmethod
    def of(
        cls, recipe: Recipe, endpoints: Sequence[Endpoint], threats: Sequence[Threat], names: Sequence[str]
    ) -> "Recalibration":
        """As the recipe trains.

        Args:
            recipe: Its batches are drawn, and its attacks have so many steps.
            endpoints: What is mixed.
            threats: Those of the dial.
            names: `clean` and threats, whole or by their norm: these for all mixtures, to equal parts. If none are
                named, every endpoint brings what its learner saw; where that is not known, clean images and all
                threats.
        """
        known = [CLEAN, *map(str, threats)]
        for name in names:
            if not any(one == name or one.startswith(f"{name}:") for one in known):
                raise unknown("inputs for BatchNorm", name, known)
        wanted = [one for one in known if not names or {one, one.partition(":")[0]} & set(names)]
        steps = [learner.objective.options.get("steps") for learner in recipe.learners.values()]
        given = Inputs.of_threats(
            [one for one in wanted if one != CLEAN],
            clean=CLEAN in wanted,
            steps=max((number for number in steps if isinstance(number, int)), default=STEPS),
        )
        own = {one.name: None if names or one.task is None else Inputs.of_task(one.task) for one in endpoints}
        data = recipe.data
        return cls(
            inputs={name: found or given for name, found in own.items()},
            batches=recipe.mixing.recalibrate_batches,
            batch_size=recipe.training.batch_size,
            seed=recipe.seed + 1,
            augment=Augment(crop=data.crop, flip=data.flip, cutout=data.cutout),
            balance=data.balance,
        )

    def record(self) -> dict[str, Any]:
        inputs = {name: one.record() for name, one in self.inputs.items()}
        drawn = {"balance": self.balance} if self.balance else {}
        return {"batches": self.batches, "batch_size": self.batch_size, "inputs": inputs, "seed": self.seed, **drawn}

    def apply_(self, model: nn.Module, shares: Shares, train: Split, *, device: torch.device, workers: int) -> None:
        """Statistics of the model ← Σ share·(statistics on the inputs of each endpoint)."""
        before = {name: tensor.clone() for name, tensor in statistics(model).items()}
        measured: list[tuple[Inputs, StateTree]] = []  # learners of one task see the same
        of: dict[str, StateTree] = {}
        for endpoint in dict.fromkeys(name for row in shares.values() for name in row):
            inputs = self.inputs[endpoint]
            if all(inputs != known for known, _ in measured):
                _set_(model, before)
                self._measure_(model, inputs, train, device, workers)
                measured.append((inputs, {name: tensor.clone() for name, tensor in statistics(model).items()}))
            of[endpoint] = next(found for known, found in measured if known == inputs)
        parts = {name: [share * of[one][name] for one, share in row.items()] for name, row in shares.items()}
        _set_(model, {name: torch.stack(found).sum(0) for name, found in parts.items()})

    def _measure_(self, model: nn.Module, inputs: Inputs, train: Split, device: torch.device, workers: int) -> None:
        objectives = [make_objective(one.name, one.options) for one in inputs.objectives]
        with torch.random.fork_rng(devices=[]):  # a network may draw noise of its own while it is measured
            torch.default_generator.manual_seed(derive(self.seed, "dial"))
            sample = self._sample(train, device, workers)
            recalibrate_(model, objectives, sample, seed=self.seed, progress=1.0, clean=inputs.clean)

    def _sample(self, train: Split, device: torch.device, workers: int) -> Iterator[Batch]:
        drawn = batches(
            train, batch_size=self.batch_size, seed=self.seed, epoch=0, augment=self.augment, device=device,
            workers=workers, balance=self.balance,
        )  # fmt: skip
        return islice(drawn, self.batches)


def _set_(model: nn.Module, values: StateTree) -> None:
    for name, tensor in statistics(model).items():
        tensor.copy_(values[name])
