"""TRADES (Zhang et al. 2019), and two that build on it: HAT (Rade and Moosavi-Dezfooli 2022), LBGAT (Cui et al. 2021).

All three attack the divergence from the clean answer, KL(p(x)‖p(x')), with p(x) computed once.
"""

import copy
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import kl, pgd
from generalist.core.threat import Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, NonNegativeFloat, StepContext
from generalist.objectives.fields import StepSize, divergence, eval_logits, gaussian_start
from generalist.objectives.module import FrozenNetwork, ObjectiveModule
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("trades")
def trades(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    beta: NonNegativeFloat = 6.0,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
) -> Loss:
    """CE(x) + β·KL(p(x)‖p(x')), gradient through both.

    Args:
        beta: The weight of the divergence; 0 is natural training and makes no x'.
    """
    if beta == 0:
        return lambda: LossTerms(F.cross_entropy(model(x), y))
    x_adv = diverging(model, x, y, context=context, threat=threat, steps=steps, step_size=step_size)

    def loss() -> LossTerms:
        logits = model(x)
        clean, apart = F.cross_entropy(logits, y), divergence(logits, model(x_adv)).mean()
        return LossTerms(clean + beta * apart, {"clean": clean.detach(), "divergence": apart.detach()})

    return loss


@OBJECTIVES.register("hat")
class HelperAdversarial(ObjectiveModule):
    """TRADES, and CE at x + 2(x'−x) with the label that a standard-trained network gives to x'.

    Args:
        beta: The weight of the divergence.
        gamma: The weight of CE at the far point.
        reach: How far that point is, in lengths of x'−x.
    """

    needs = ("standard",)
    outlives_reset = False

    def __init__(
        self,
        *,
        networks: Mapping[str, nn.Module],
        threat: Threat,
        beta: NonNegativeFloat = 2.5,
        gamma: NonNegativeFloat = 0.5,
        reach: NonNegativeFloat = 2.0,
        steps: InnerSteps = 10,
        step_size: StepSize | None = None,
    ) -> None:
        super().__init__()
        self._standard = FrozenNetwork(networks["standard"])
        self._threat, self._steps, self._step_size = threat, steps, step_size
        self._beta, self._gamma, self._reach = beta, gamma, reach

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        x_adv = diverging(
            model, x, y, context=context, threat=self._threat, steps=self._steps, step_size=self._step_size
        )
        helper = x + self._reach * (x_adv - x)
        label = eval_logits(self._standard.network, x_adv).argmax(1)

        def loss() -> LossTerms:
            logits = model(x)
            clean, apart = F.cross_entropy(logits, y), divergence(logits, model(x_adv)).mean()
            far = F.cross_entropy(model(helper), label)
            parts = {"clean": clean.detach(), "divergence": apart.detach(), "helper": far.detach()}
            return LossTerms(clean + self._beta * apart + self._gamma * far, parts)

        return loss


@OBJECTIVES.register("lbgat")
class BoundaryGuided(ObjectiveModule):
    """CE(g(x), y) + MSE(f(x'), g(x)) + β·KL(p_f(x)‖p_f(x')); g is a natural network trained beside f.

    Args:
        beta: The weight of the divergence.
    """

    def __init__(
        self,
        *,
        threat: Threat,
        beta: NonNegativeFloat = 6.0,
        steps: InnerSteps = 10,
        step_size: StepSize | None = None,
    ) -> None:
        super().__init__()
        self._threat, self._beta, self._steps, self._step_size = threat, beta, steps, step_size

    def attach_(self, model: nn.Module) -> None:
        self.guide = copy.deepcopy(model).requires_grad_(True)  # all of it, also beside a model that trains a part

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        x_adv = diverging(
            model, x, y, context=context, threat=self._threat, steps=self._steps, step_size=self._step_size
        )
        self.guide.train(model.training)

        def loss() -> LossTerms:
            guide, robust = self.guide(x), model(x_adv)
            clean, pull = F.cross_entropy(guide, y), F.mse_loss(robust, guide)
            parts = {"guide": clean.detach(), "pull": pull.detach()}
            if self._beta == 0:
                return LossTerms(clean + pull, parts)
            apart = divergence(model(x), robust).mean()
            return LossTerms(clean + pull + self._beta * apart, {**parts, "divergence": apart.detach()})

        return loss


def diverging(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    steps: int,
    step_size: StepSize | None,
) -> Tensor:
    """x' whose answer is far from that to x, labels aside."""
    p = eval_logits(model, x).softmax(1)
    start = gaussian_start(x, context)
    return pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, start=start, criterion=kl(p))
