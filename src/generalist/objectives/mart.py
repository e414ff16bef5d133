"""MART (Wang et al. 2020): images that are misclassified unattacked weigh more."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.threat import Threat
from generalist.core.types import Count, Loss, LossTerms, Moment, NonNegativeFloat
from generalist.objectives.fields import StepSize
from generalist.objectives.registry import OBJECTIVES

TINY = 1e-6


@OBJECTIVES.register("mart")
def mart(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    moment: Moment,
    threat: Threat,
    beta: NonNegativeFloat = 5.0,
    steps: Count = 10,
    step_size: StepSize | None = None,
) -> Loss:
    """CE(x') − log(1 − max_{k≠y} p'_k) + β·KL(p‖p')·(1 − p_y), mean over the batch."""
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, generator=moment.generator)

    def loss() -> LossTerms:
        log_adv, p = F.log_softmax(model(x_adv).float(), 1), torch.softmax(model(x).float(), 1)
        runner_up = log_adv.exp().scatter(1, y[:, None], 0).amax(1)
        boosted = (F.nll_loss(log_adv, y, reduction="none") - (1 - runner_up).clamp_min(TINY).log()).mean()
        apart = F.kl_div(log_adv, p, reduction="none").sum(1)
        weighted = (apart * (1 - p.gather(1, y[:, None])[:, 0])).mean()
        return LossTerms(boosted + beta * weighted, {"robust": boosted.detach(), "weighted": weighted.detach()})

    return loss
