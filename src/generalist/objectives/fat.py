"""Friendly adversarial training (Zhang et al. 2020): PGD that stops soon after an image is misclassified."""

from fractions import Fraction
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from generalist.attacks import ascend, attack_view, cross_entropy, loss_and_gradient
from generalist.core.rng import normal_like
from generalist.core.threat import Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, NonNegativeFloat, StepContext
from generalist.objectives.fields import Share, StepSize
from generalist.objectives.registry import OBJECTIVES

Patience = Annotated[int, Field(ge=0, le=1000)]


@OBJECTIVES.register("fat")
def fat(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
    patience: tuple[Patience, Patience, Patience] = (0, 1, 2),
    patience_until: tuple[Share, Share] = (Fraction(5, 12), Fraction(3, 4)),
    noise: NonNegativeFloat = 0.001,
) -> Loss:
    """CE(x'); an image spends τ further steps once it is misclassified, then stays where it is.

    τ = steps without noise is AT.

    Args:
        patience: τ up to the first share of training in `patience_until`, up to the second, and after it.
        patience_until: Two shares of training.
        noise: Standard deviation of the noise that is added in each step.
    """
    stage = sum(context.progress > float(until) for until in patience_until)
    x_adv = friendly(
        model, x, y, context=context, threat=threat, steps=steps, step_size=step_size, tau=patience[stage], noise=noise
    )
    return lambda: LossTerms(F.cross_entropy(model(x_adv), y))


def friendly(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: int,
    step_size: Fraction | None,
    tau: int,
    noise: float,
) -> Tensor:
    """x' of each image where its patience ran out, or after all steps; images that are through cost nothing."""
    size = threat.radius / 4 if step_size is None else float(step_size)
    streams = context.generator
    x_adv = threat.random_start(x, streams)
    rows, left = torch.arange(len(y), device=x.device), torch.full_like(y, tau)
    with attack_view(model) as view:
        for _ in range(steps):
            logits, _, gradient = loss_and_gradient(view, x_adv[rows], y[rows], cross_entropy)
            wrong = logits.argmax(1) != y[rows]
            going = ~(wrong & (left[rows] == 0))
            left[rows] -= wrong.long()
            if noise:
                # drawn for all: what an image draws does not depend on who is left
                jitter = noise * normal_like(x, streams)
            rows, gradient = rows[going], gradient[going]
            if not len(rows):
                break
            ahead = ascend(x_adv[rows], x[rows], gradient, threat=threat, step_size=size)
            x_adv[rows] = threat.project(ahead + jitter[rows], x[rows]) if noise else ahead
    return x_adv
