"""Projected gradient ascent (Madry et al. 2018); FGSM is its one full step."""

from fractions import Fraction

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import cross_entropy
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.core.rng import Source
from generalist.core.rng import generator as make_generator
from generalist.core.threat import Threat
from generalist.core.types import Criterion

L1_DENSITY = 0.01  # the share of pixels an ℓ1 step moves (Tramèr and Boneh 2019)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: int = 10,
    step_size: float | Fraction | None = None,
    random_start: bool = True,
    generator: Source | None = None,
    criterion: Criterion = cross_entropy,
) -> Tensor:
    """x' after `steps` steepest steps on the criterion, each projected: [B, ...] → [B, ...].

    `step_size` is in pixel units, eps/4 if not given. Without a generator the start is that of a fixed seed. The last
    point is returned, as in training; the model's mode, statistics and gradients stay as they were.
    """
    size = threat.radius / 4 if step_size is None else float(step_size)
    x = x.detach()
    with attack_view(model) as view:
        x_adv = threat.random_start(x, generator or make_generator("pgd", 0, device=x.device)) if random_start else x
        for _ in range(steps):
            _, _, gradient = loss_and_gradient(view, x_adv, y, criterion)
            x_adv = ascend(x_adv, x, gradient, threat=threat, step_size=size)
    return x_adv.detach()


def fgsm(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, criterion: Criterion = cross_entropy) -> Tensor:
    """One step of full size from the image itself (Goodfellow et al. 2015)."""
    return pgd(model, x, y, threat=threat, steps=1, step_size=threat.radius, random_start=False, criterion=criterion)


def ascend(x_adv: Tensor, x: Tensor, gradient: Tensor, *, threat: Threat, step_size: float) -> Tensor:
    """One projected step along the steepest direction."""
    if threat.norm == "l1":
        # pixels already at the edge of the box cannot go further: spending the step on them would waste it
        blocked = ((x_adv <= 0) & (gradient < 0)) | ((x_adv >= 1) & (gradient > 0))
        gradient = torch.where(blocked, 0, gradient)
    return threat.project(x_adv + step_size * threat.steepest(gradient, density=L1_DENSITY), x)
