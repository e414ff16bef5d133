"""Robust self-training (Raghunathan et al. 2020), on labelled and, with `data.extra`, on pseudo-labelled images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.threat import Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, NonNegativeFloat, StepContext
from generalist.objectives.fields import StepSize, gaussian_start
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("rst")
def rst(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
    natural_weight: NonNegativeFloat = 0.5,
    robust_weight: NonNegativeFloat = 0.5,
    extra_natural_weight: NonNegativeFloat = 0.9,
    extra_robust_weight: NonNegativeFloat = 0.5,
) -> Loss:
    """½·CE(x) + ½·CE(x'), x' from PGD on CE beside the image; images of `data.extra` have weights of their own.

    Args:
        natural_weight: The weight of CE(x).
        robust_weight: The weight of CE(x').
        extra_natural_weight: The weight of CE(x) for images of `data.extra`.
        extra_robust_weight: The weight of CE(x') for images of `data.extra`.
    """
    start = gaussian_start(x, context)
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, start=start)
    extra = torch.zeros_like(y, dtype=torch.bool) if context.extra is None else context.extra
    natural, robust = (
        torch.where(extra, theirs, own)
        for own, theirs in ((natural_weight, extra_natural_weight), (robust_weight, extra_robust_weight))
    )

    def loss() -> LossTerms:
        clean = (natural * F.cross_entropy(model(x).float(), y, reduction="none")).mean()
        attacked = (robust * F.cross_entropy(model(x_adv).float(), y, reduction="none")).mean()
        return LossTerms(clean + attacked, {"clean": clean.detach(), "robust": attacked.detach()})

    return loss
