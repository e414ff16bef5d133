"""AGR: the adversarial and the clean gradient, reconciled tensor by tensor late in training."""

from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.threat import TINY, Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, PositiveFloat, StepContext
from generalist.objectives.fields import Share, StepSize
from generalist.objectives.gradients import weight_gradients, with_gradients
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("agr")
def agr(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
    start: Share = Fraction(155, 200),
    longest: PositiveFloat = 0.1,
) -> Loss:
    """AT at first; late in training the gradients of CE(x') and CE(x) are reconciled, tensor by tensor.

    Args:
        start: The share of training from which on they are reconciled.
        longest: The largest norm of a reconciled gradient.
    """
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, generator=context.generator)

    def loss() -> LossTerms:
        robust = F.cross_entropy(model(x_adv), y)
        if context.progress < float(start) or not torch.is_grad_enabled():
            return LossTerms(robust)
        clean = F.cross_entropy(model(x), y)
        weights = [p for p in model.parameters() if p.requires_grad]
        pairs = zip(*(context.batch_mean(weight_gradients(part, weights)) for part in (robust, clean)), strict=True)
        gradients = [shortened(reconciled(g1, g2), longest) for g1, g2 in pairs]
        return LossTerms(with_gradients(robust, weights, gradients))

    return loss


def reconciled(g1: Tensor, g2: Tensor) -> Tensor:
    """c = cos(g1, g2): g1 without its part along g2 where c ≤ 0, else c·g2 + (1−c)·g1."""
    dot = (g1 * g2).sum()
    c = dot / (g1.norm() * g2.norm()).clamp_min(TINY)
    opposed = g1 - dot / g2.square().sum().clamp_min(TINY) * g2
    return torch.where(c <= 0, opposed, c * g2 + (1 - c) * g1)


def shortened(gradient: Tensor, longest: float) -> Tensor:
    return gradient * (longest / gradient.norm().clamp_min(longest))
