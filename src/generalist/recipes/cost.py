"""What a recipe costs, before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from generalist.core.types import step_context
from generalist.mixing import MixPlan
from generalist.objectives import make_objective, networks_needed, perturbed_weights
from generalist.recipes.schema import LearnerSection, Recipe
from generalist.training.placement import phases

PROBE_IMAGES = 64
AT_PASSES = 11  # PGD-10 and the step itself


@dataclass
class _Tally:
    """Images that went through a network, forward or backward; copies of a network share it.

    `depth` is the share of the network that a backward pass goes through.
    """

    images: float = 0.0
    depth: float = 1.0

    def __deepcopy__(self, memo: Any) -> "_Tally":
        return self


class _Counted(nn.Module):
    """A linear classifier of 4×4 images that counts."""

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self.linear, self.tally = nn.Linear(16, 2), tally

    def forward(self, x: Tensor) -> Tensor:
        self.tally.images += len(x)
        logits: Tensor = self.linear(x.flatten(1))
        if logits.requires_grad:
            logits.register_hook(self._backward)
        return logits

    def _backward(self, gradient: Tensor) -> None:
        self.tally.images += len(gradient) * self.tally.depth


def passes_per_step(section: LearnerSection, *, depth: float = 1.0) -> float:
    """Forward and backward passes of one step, counted, in units of one of each; late in training, if that matters.

    `depth` is the share of the network down to which the learner trains: gradients for weights go no further. Those of
    an attack go through all of it.
    """
    tally = _Tally()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _Counted(tally)
        networks = {need: _Counted(tally) for need in networks_needed(section.objective.name)}
    x = torch.rand(PROBE_IMAGES, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = model(x).argmax(1)  # images that are right unattacked, as most are while training
    objective = make_objective(section.objective.name, section.objective.options, networks=networks)
    objective.attach_(model)
    tally.images = 0
    context = step_context("cost", ids=torch.arange(PROBE_IMAGES), progress=0.99)
    loss = objective(model, x, y, context=context)
    tally.depth = depth
    with perturbed_weights(model, loss, section.weight_perturbation, context=context):
        loss().total.backward()
    return tally.images / (2 * PROBE_IMAGES)


@dataclass(frozen=True)
class Workload:
    """The cost of all epochs up to each one; learners that start later make later epochs dearer."""

    until: tuple[float, ...]
    steps_per_epoch: int

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        plan: MixPlan,
        *,
        validated: int,
        ranks: int,
        depths: Mapping[str, float] | None = None,
    ) -> "Workload":
        """In passes of a batch, on the rank that has most to do; `validated` images are attacked at a validation."""
        costs = passes(recipe, depths)
        validation, batch_size = recipe.validation, recipe.training.batch_size
        judged = validated / batch_size / ranks * (0.5 + len(validation.threats) * (validation.steps + 0.5))
        epochs = []
        for phase in phases(plan, costs, ranks=ranks, batch_size=batch_size):
            for epoch in range(phase.first_epoch + 1, phase.first_epoch + phase.epochs + 1):
                due = epoch % validation.every_epochs == 0 or epoch == plan.epochs
                learners = costs if epoch == plan.epochs else phase.costs  # at the end also those that ended before
                epochs.append(plan.steps_per_epoch * phase.load + due * (1 + len(learners)) * judged)
        return cls(tuple(accumulate(epochs, initial=0.0)), plan.steps_per_epoch)

    def share(self, step: int) -> float:
        """How much of the work is done after so many steps, 0 to 1."""
        epoch, within = divmod(step, self.steps_per_epoch)
        done = self.until[epoch]
        if within:
            done += (self.until[epoch + 1] - done) * within / self.steps_per_epoch
        return done / self.until[-1]


def passes(recipe: Recipe, depths: Mapping[str, float] | None = None) -> dict[str, float]:
    """`passes_per_step` of every learner; `depths` are the shares of the network that they train down to."""
    return {
        name: passes_per_step(section, depth=(depths or {}).get(name, 1.0)) for name, section in recipe.learners.items()
    }


def cost_in_at(recipe: Recipe, plan: MixPlan, depths: Mapping[str, float] | None = None) -> float:
    """The passes that are left of the plan, from `init.epoch` on, over those of one whole PGD-10 AT run."""
    work = sum(
        plan.active_epochs(name, since=recipe.first_epoch) * each for name, each in passes(recipe, depths).items()
    )
    return float(work / (AT_PASSES * Fraction(plan.epochs)))
