"""Adversarial training (Madry et al. 2018): AT with β = 1, half-half with β = ½."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.threat import Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, StepContext, Unit
from generalist.objectives.fields import StepSize
from generalist.objectives.registry import OBJECTIVES

Beta = Annotated[float, Field(gt=0, le=1)]


@OBJECTIVES.register("adversarial")
def adversarial(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    beta: Beta = 1.0,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
    random_start: bool = True,
    label_smoothing: Unit = 0.0,
) -> Loss:
    """β·CE(x') + (1−β)·CE(x), x' from PGD on CE (CVPR Eq. 1).

    Args:
        beta: The share of the adversarial term; 1 is AT, ½ is half-half.
        random_start: Start the attack from a random point of the ball instead of the image.
        label_smoothing: The share of the label that is spread over all classes.
    """
    generator = context.generator
    x_adv = pgd(
        model, x, y, threat=threat, steps=steps, step_size=step_size, random_start=random_start, generator=generator
    )

    def loss() -> LossTerms:
        robust = F.cross_entropy(model(x_adv), y, label_smoothing=label_smoothing)
        if beta == 1:
            return LossTerms(robust)
        clean = F.cross_entropy(model(x), y, label_smoothing=label_smoothing)
        return LossTerms(beta * robust + (1 - beta) * clean, {"robust": robust.detach(), "clean": clean.detach()})

    return loss
