"""Interpolated adversarial training (Lamb et al. 2019): mixup on clean and on adversarial images."""

import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.rng import ImageStreams
from generalist.core.threat import Threat, expand_like
from generalist.core.types import InnerSteps, Loss, LossTerms, StepContext
from generalist.objectives.fields import StepSize
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("iat")
def iat(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: InnerSteps = 7,
    step_size: StepSize | None = None,
) -> Loss:
    """½[mix-CE(mix(x)) + mix-CE(mix(x'))], λ~Beta(1,1) for each pair and anew for x'; x' from unmixed images."""
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, generator=context.generator)
    shares = [_beta(context.generator).to(x) for _ in range(2)]

    def loss() -> LossTerms:
        clean, robust = (mixed_loss(model, part, y, share) for part, share in zip((x, x_adv), shares, strict=True))
        return LossTerms((clean + robust) / 2, {"clean": clean.detach(), "robust": robust.detach()})

    return loss


def mixed_loss(model: nn.Module, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """λ·CE(z, y) + (1−λ)·CE(z, y') for z of λ·x + (1−λ)·x'; the batch is shuffled, so the partner is the one before."""
    partner, other = x.roll(1, 0), y.roll(1, 0)
    logits = model(expand_like(share, x) * x + expand_like(1 - share, x) * partner).float()
    own, others = (F.cross_entropy(logits, label, reduction="none") for label in (y, other))
    return (share * own + (1 - share) * others).mean()


def _beta(streams: ImageStreams) -> Tensor:
    """Beta(1, 1) is uniform."""
    return streams.uniform(1)[:, 0]
