"""SCORE (Pang et al. 2022): squared distances between probabilities, and no pressure below a threshold."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.threat import Threat
from generalist.core.types import Criterion, InnerSteps, Loss, LossTerms, NonNegativeFloat, StepContext
from generalist.objectives.fields import StepSize, eval_logits, gaussian_start
from generalist.objectives.registry import OBJECTIVES

THRESHOLD = {"pgd": 0.4, "trades": 0.3}


@OBJECTIVES.register("score")
def score(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    form: Literal["pgd", "trades"] = "trades",
    beta: NonNegativeFloat = 6.0,
    threshold: NonNegativeFloat | None = None,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
) -> Loss:
    """d = ‖p − q‖². pgd: ReLU(d(p(x'), y) − 0.4). trades: ReLU(d(p(x), y) + β·d(p(x'), p(x)) − 0.3).

    Args:
        form: Which of the two.
        beta: The weight of the second distance, in the form `trades`.
        threshold: The loss below which there is no pressure; 0.4 and 0.3 if not given.
    """
    allowed = THRESHOLD[form] if threshold is None else threshold
    if form == "pgd":
        start = threat.random_start(x, context.generator)
        x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, start=start, criterion=from_label)
        return lambda: LossTerms(F.relu(from_label(model(x_adv).float(), y) - allowed).mean())
    p = eval_logits(model, x).softmax(1)
    start = gaussian_start(x, context)
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, start=start, criterion=_from(p))

    def loss() -> LossTerms:
        clean = model(x).float()
        own = from_label(clean, y)
        apart = squared(model(x_adv).float().softmax(1), clean.softmax(1))
        parts = {"clean": own.mean().detach(), "apart": apart.mean().detach()}
        return LossTerms(F.relu(own + beta * apart - allowed).mean(), parts)

    return loss


def from_label(logits: Tensor, y: Tensor) -> Tensor:
    """‖p − onehot(y)‖² [B]."""
    return squared(logits.softmax(1), F.one_hot(y, logits.shape[1]).to(logits))


def _from(reference: Tensor) -> Criterion:
    return lambda logits, y: squared(logits.softmax(1), reference)


def squared(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).square().sum(1)
