"""PART (Zhang et al. 2024): pixels that matter little to the prediction are perturbed less."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import attack_view, cross_entropy, loss_and_gradient
from generalist.core.errors import UserError
from generalist.core.threat import Threat, expand_like
from generalist.core.types import InnerSteps, Loss, LossTerms, PositiveFloat, StepContext, Unit
from generalist.models.gradcam import activation_map
from generalist.objectives.fields import Share, StepSize
from generalist.objectives.registry import OBJECTIVES

FLAT = 1e-5


def _only_linf(options: Mapping[str, Any]) -> None:
    if options["threat"].norm != "linf":
        raise UserError(f"part bounds single pixels, which only linf does; got threat {options['threat']}")


@OBJECTIVES.register("part", check=_only_linf)
def part(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
    start: Share = Fraction(1, 6),
    lower: Unit = 0.875,
    deviations: PositiveFloat = 1.0,
) -> Loss:
    """CE(x'), x' from PGD with a bound for each pixel: those that the class-activation map points at keep ε.

    Args:
        start: The share of training up to which it is AT.
        lower: The bound of the other pixels, in ε (7/255 of 8/255).
        deviations: By how many standard deviations the map of a pixel that keeps ε exceeds its mean.
    """
    size = threat.radius / 4 if step_size is None else float(step_size)
    bound = torch.full_like(x[:, :1], threat.radius)
    if context.progress >= float(start):
        matters = standardised(activation_map(model, x)) > deviations
        bound = torch.where(matters, bound, lower * bound)
    x_adv = into(threat.random_start(x, context.generator), x, bound)
    with attack_view(model) as view:
        for _ in range(steps):
            _, _, gradient = loss_and_gradient(view, x_adv, y, cross_entropy)
            x_adv = into(x_adv + size * gradient.sign(), x, bound)
    return lambda: LossTerms(F.cross_entropy(model(x_adv), y))


def into(x_adv: Tensor, x: Tensor, bound: Tensor) -> Tensor:
    return torch.clamp(x_adv, x - bound, x + bound).clamp_(0, 1)


def standardised(heat: Tensor) -> Tensor:
    """Mean 0 and deviation 1 for each image; 0 where it is flat."""
    flat = heat.flatten(1)
    mean, deviation = flat.mean(1), flat.std(1, unbiased=False)
    least = (FLAT * flat.abs().amax(1)).clamp_min(1e-12)  # below this the differences are rounding
    return torch.where(
        expand_like(deviation > least, heat), (heat - expand_like(mean, heat)) / expand_like(deviation, heat), 0.0
    )
