"""What a recipe costs, before it runs."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from generalist.core.types import moment
from generalist.mixing import MixPlan
from generalist.objectives import Stateful, make_objective, networks_needed, perturbed_weights
from generalist.recipe import LearnerSection, Recipe

PROBE_IMAGES = 64
AT_PASSES = 11  # PGD-10 and the step itself


@dataclass
class _Tally:
    """Images that went through a network, forward or backward; copies of a network share it."""

    images: int = 0

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
        self.tally.images += len(gradient)


def passes_per_step(section: LearnerSection) -> float:
    """Forward and backward passes of one step, counted, in units of one of each; late in training, if that matters."""
    tally = _Tally()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _Counted(tally)
        networks = {need: _Counted(tally) for need in networks_needed(section.objective.name)}
    x = torch.rand(PROBE_IMAGES, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = model(x).argmax(1)  # images that are right unattacked, as most are while training
    objective = make_objective(section.objective.name, section.objective.options, networks=networks)
    if isinstance(objective, Stateful):
        objective.attach_(model)
    tally.images = 0
    loss = objective(model, x, y, moment=moment("cost", ids=torch.arange(PROBE_IMAGES), progress=0.99))
    with perturbed_weights(model, loss, section.weight_perturbation):
        loss().total.backward()
    return tally.images / (2 * PROBE_IMAGES)


def cost_in_at(recipe: Recipe, plan: MixPlan) -> float:
    """The passes of the whole plan over those of one PGD-10 AT run of the same length."""
    passes = sum(plan.live_epochs(name) * passes_per_step(section) for name, section in recipe.learners.items())
    return float(passes / (AT_PASSES * Fraction(plan.epochs)))
