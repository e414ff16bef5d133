"""MART (Wang et al. 2020): images that are misclassified unattacked weigh more."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.threat import Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, NonNegativeFloat, StepContext
from generalist.objectives.fields import StepSize, divergence, gaussian_start
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("mart")
def mart(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threat: Threat,
    beta: NonNegativeFloat = 5.0,
    steps: InnerSteps = 10,
    step_size: StepSize | None = None,
) -> Loss:
    """CE(x') − log(1 − max_{k≠y} p'_k) + β·KL(p‖p')·(1 − p_y), mean over the batch.

    Args:
        beta: The weight of the divergence.
    """
    start = gaussian_start(x, context)
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, start=start)

    def loss() -> LossTerms:
        attacked, clean = model(x_adv).float(), model(x).float()
        log_q = F.log_softmax(attacked, 1)
        runner_up = log_q.scatter(1, y[:, None], -torch.inf).argmax(1, keepdim=True)
        rest = log_q.scatter(1, runner_up, -torch.inf).logsumexp(1)  # log(1 − max_{k≠y} p'_k)
        boosted = (F.nll_loss(log_q, y, reduction="none") - rest).mean()
        p_y = clean.softmax(1).gather(1, y[:, None])[:, 0]
        weighted = (divergence(clean, attacked) * (1 - p_y)).mean()
        return LossTerms(boosted + beta * weighted, {"robust": boosted.detach(), "weighted": weighted.detach()})

    return loss
