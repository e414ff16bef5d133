"""Training on corrupted images: noise, blur, contrast and brightness, one kind per image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.core.threat import expand_like
from generalist.core.types import Loss, LossTerms, PositiveFloat, StepContext
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("corrupted")
def corrupted(model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext, severity: PositiveFloat = 0.3) -> Loss:
    """CE of each image under one of four corruptions: noise, blur, contrast, brightness.

    Args:
        severity: The largest strength; each image draws its own from 0 up.
    """
    inputs = corrupt(x, context, severity=severity)
    return lambda: LossTerms(F.cross_entropy(model(inputs), y))


def corrupt(x: Tensor, context: StepContext, *, severity: float) -> Tensor:
    """Gaussian noise, 3×3 blur, contrast towards the image's mean, brightness up or down; back into the box."""
    kind, strength, sign = context.generator.uniform(3).to(x).unbind(1)
    strength = expand_like(severity * strength, x)
    blurred = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    mean = x.mean((1, 2, 3), keepdim=True)
    choices = torch.stack(
        [
            x + strength * context.generator.normal(*x.shape[1:]).to(x),
            x + strength.clamp(max=0.3) / 0.3 * (blurred - x),
            mean + (1 - strength) * (x - mean),
            x + strength * expand_like(torch.where(sign < 0.5, -1.0, 1.0), x),
        ]
    )
    which = (kind * len(choices)).long()
    return choices[which, torch.arange(len(x), device=x.device)].clamp_(0, 1)
