"""RAMP (Jiang and Singh 2024): logit pairing between two norms, and a clean copy whose update is projected in."""

import copy
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from generalist.attacks import apgd
from generalist.core.threat import TINY, Threat
from generalist.core.types import InnerSteps, Loss, LossTerms, NonNegativeFloat, StepContext, Unit
from generalist.objectives.fields import divergence
from generalist.objectives.module import ObjectiveModule
from generalist.objectives.registry import OBJECTIVES

Pair = Annotated[tuple[Threat, ...], Field(min_length=2, max_length=2)]


@OBJECTIVES.register("ramp")
class Ramp(ObjectiveModule):
    """CE on the worse of x_s and x_t + λ·KL(p(x_s)‖p(x_t)), the mean over images with x_s right.

    At each epoch's end θ ← θ_old + β·max(0, cos)·Δ_nat + (1−β)·Δ_adv for every tensor, β = ½. Both Δ start from θ_old;
    Δ_nat is that of a copy that is trained on clean images.

    Args:
        pairing: λ, the weight of the divergence.
        clean_share: β, the share of the clean copy's update.
    """

    outlives_reset = False

    def __init__(
        self, *, threats: Pair, steps: InnerSteps = 10, pairing: NonNegativeFloat = 5.0, clean_share: Unit = 0.5
    ) -> None:
        super().__init__()
        self._threats, self._steps, self._pairing, self._clean_share = threats, steps, pairing, clean_share

    def attach_(self, model: nn.Module) -> None:
        self.clean = copy.deepcopy(model)
        self.start = copy.deepcopy(model).requires_grad_(False)

    def model_replaced_(self, model: nn.Module) -> None:
        for network in (self.clean, self.start):
            network.load_state_dict(model.state_dict())

    @torch.no_grad()
    def epoch_ended_(self, model: nn.Module) -> None:
        natural, begun = dict(self.clean.named_parameters()), dict(self.start.named_parameters())
        for name, weight in model.named_parameters():
            old = begun[name]
            weight.copy_(old + merged(natural[name] - old, weight - old, self._clean_share))
        self.model_replaced_(model)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        source, target = (
            apgd(
                model, x, y, threat=threat, steps=self._steps, loss="ce", stop_when_wrong=False, random_start=False,
                wider_first=False, generator=context.generator,
            )
            for threat in self._threats
        )  # fmt: skip
        for ours, theirs in zip(self.clean.modules(), model.modules(), strict=True):
            ours.training = theirs.training  # what the model does not train, the copy does not either

        def loss() -> LossTerms:
            z_s, z_t = model(source).float(), model(target).float()
            worse = torch.maximum(*(F.cross_entropy(z, y, reduction="none") for z in (z_s, z_t))).mean()
            pairing = paired(z_s, z_t, y)
            clean = F.cross_entropy(self.clean(x), y)
            parts = {"worse": worse.detach(), "pairing": pairing.detach(), "clean": clean.detach()}
            return LossTerms(worse + self._pairing * pairing + clean, parts)

        return loss


def paired(z_s: Tensor, z_t: Tensor, y: Tensor) -> Tensor:
    """The mean of KL(p(x_s)‖p(x_t)) over the images with x_s right; 0 where there are none."""
    right = (z_s.argmax(1) == y).float()
    return (divergence(z_s, z_t) * right).sum() / right.sum().clamp_min(1)


def merged(natural: Tensor, adversarial: Tensor, clean_share: float) -> Tensor:
    """β·max(0, cos)·Δ_nat + (1−β)·Δ_adv."""
    cos = (natural * adversarial).sum() / (natural.norm() * adversarial.norm()).clamp_min(TINY)
    return clean_share * cos.clamp_min(0) * natural + (1 - clean_share) * adversarial
