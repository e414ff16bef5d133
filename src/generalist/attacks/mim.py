"""The momentum iterative method (Dong et al. 2018)."""

from fractions import Fraction

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import cross_entropy
from generalist.attacks.pgd import ascend
from generalist.attacks.progress import track
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.core.rng import Source, per_image
from generalist.core.threat import Threat
from generalist.core.types import Criterion, NonNegativeFloat, Steps

SMALLEST = 1e-38  # what float32 can still divide by: a sure model has tiny gradients, and they count


def mim(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: Steps = 20,
    step_size: float | Fraction | None = None,
    momentum: NonNegativeFloat = 1.0,
    random_start: bool = False,
    generator: Source | None = None,
    criterion: Criterion = cross_entropy,
) -> Tensor:
    """x' after `steps` steps along the sum of all gradients so far, each of mean absolute value 1: [B, ...] → [B, ...].

    `step_size` is in pixel units, eps/4 if not given; `momentum` weighs the older ones. The last point is returned.
    """
    size = threat.radius / 4 if step_size is None else float(step_size)
    x_adv = x = x.detach()
    total = torch.zeros_like(x)
    with attack_view(model) as view:
        if random_start:
            x_adv = threat.random_start(x, per_image(generator, x, "mim"))
        for _ in track(range(steps)):
            _, _, gradient = loss_and_gradient(view, x_adv, y, criterion)
            mean = gradient.abs().flatten(1).mean(1).clamp_min(SMALLEST)
            total = momentum * total + gradient / mean.view(-1, *[1] * (x.dim() - 1))
            x_adv = ascend(x_adv, x, total, threat=threat, step_size=size)
    return x_adv
