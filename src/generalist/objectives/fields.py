"""Types of recipe fields that several objectives share, and what is drawn or looked up for all of them."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from generalist.attacks import attack_view
from generalist.core.rng import normal_like
from generalist.core.threat import Threat
from generalist.core.types import Exact, StepContext

StepSize = Annotated[Exact, Field(gt=0, le=10**6)]
StepSizes = tuple[StepSize, ...]
Threats = Annotated[tuple[Threat, ...], Field(min_length=1, max_length=20)]
Share = Annotated[Exact, Field(ge=0, le=1)]


def gaussian_start(x: Tensor, context: StepContext, *, deviation: float = 0.001) -> Tensor:
    """Where TRADES and its kin begin: the image with a little Gaussian noise."""
    return x + deviation * normal_like(x, context.generator)


def divergence(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """KL(p(x)‖p(x')) [B], with a gradient for both; finite where a probability underflows to 0."""
    log_p, log_q = F.log_softmax(logits.float(), 1), F.log_softmax(logits_adv.float(), 1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


@torch.no_grad()
def eval_logits(model: nn.Module, x: Tensor) -> Tensor:
    """What the model says in eval mode, as an attack sees it."""
    with attack_view(model) as view:
        return view(x).float()
