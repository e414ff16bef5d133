"""Several threats at once: AVG and MAX (Tramèr and Boneh 2019), MSD (Maini et al. 2020)."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import ascend, attack_view, cross_entropy, loss_and_gradient, pgd
from generalist.core.errors import UserError
from generalist.core.threat import Threat, expand_like
from generalist.core.types import InnerSteps, Loss, LossTerms, StepContext
from generalist.objectives.fields import StepSizes, Threats
from generalist.objectives.registry import OBJECTIVES


def _a_step_each(options: Mapping[str, Any]) -> None:
    sizes, threats = options["step_sizes"], options["threats"]
    if sizes is not None and len(sizes) != len(threats):
        raise UserError(f"step_sizes takes one number per threat, got {len(sizes)} for {len(threats)} threats")


@OBJECTIVES.register("average", check=_a_step_each)
def average(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threats: Threats,
    steps: InnerSteps = 10,
    step_sizes: StepSizes | None = None,
) -> Loss:
    """The mean of CE(x') over one adversarial batch per threat; with one threat, AT."""
    attacked = one_per_threat(model, x, y, context, threats, steps, step_sizes)

    def loss() -> LossTerms:
        losses = {str(t): F.cross_entropy(model(x_adv), y) for t, x_adv in zip(threats, attacked, strict=True)}
        total = torch.stack(list(losses.values())).mean() if len(losses) > 1 else next(iter(losses.values()))
        return LossTerms(total, {name: value.detach() for name, value in losses.items()})

    return loss


@OBJECTIVES.register("max", check=_a_step_each)
def worst(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threats: Threats,
    steps: InnerSteps = 10,
    step_sizes: StepSizes | None = None,
) -> Loss:
    """CE of whichever x' is worst for each image."""
    attacked = one_per_threat(model, x, y, context, threats, steps, step_sizes)
    with attack_view(model) as view, torch.no_grad():
        x_adv = highest(view, torch.stack(attacked), y)[0]
    return lambda: LossTerms(F.cross_entropy(model(x_adv), y))


@OBJECTIVES.register("msd", check=_a_step_each)
def msd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    context: StepContext,
    threats: Threats,
    steps: InnerSteps = 10,
    step_sizes: StepSizes | None = None,
) -> Loss:
    """CE(x'); each step of the attack tries one move per threat and keeps the one of highest CE."""
    x_adv = steepest_of_all(model, x, y, threats=threats, steps=steps, step_sizes=step_sizes)
    return lambda: LossTerms(F.cross_entropy(model(x_adv), y))


def steepest_of_all(
    model: nn.Module, x: Tensor, y: Tensor, *, threats: Threats, steps: int, step_sizes: StepSizes | None = None
) -> Tensor:
    """From the image itself: each step tries one move per threat, from one gradient, and keeps the one of highest CE.

    Each move is projected into its own ball. The point of highest CE over all steps is returned.
    """
    sizes = _sizes(threats, step_sizes)
    x_adv = best = x
    best_loss = torch.full(y.shape, -torch.inf, device=x.device)
    with attack_view(model) as view:
        for _ in range(steps):
            _, _, gradient = loss_and_gradient(view, x_adv, y, cross_entropy)
            moves = [
                ascend(x_adv, x, gradient, threat=threat, step_size=size)
                for threat, size in zip(threats, sizes, strict=True)
            ]
            with torch.no_grad():
                x_adv, loss = highest(view, torch.stack(moves), y)
            better = loss > best_loss
            best, best_loss = torch.where(expand_like(better, x), x_adv, best), torch.where(better, loss, best_loss)
    return best


def one_per_threat(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    context: StepContext,
    threats: Threats,
    steps: int,
    step_sizes: StepSizes | None,
) -> list[Tensor]:
    return [
        pgd(model, x, y, threat=threat, steps=steps, step_size=size, generator=context.generator)
        for threat, size in zip(threats, _sizes(threats, step_sizes), strict=True)
    ]


def highest(view: nn.Module, candidates: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of candidates [N, B, ...] the one of highest CE for each image [B, ...], and that loss [B]."""
    count = len(candidates)
    losses = cross_entropy(view(candidates.flatten(0, 1)).float(), y.repeat(count)).view(count, -1)
    loss, which = losses.max(0)
    return candidates[which, torch.arange(len(y), device=y.device)], loss


def _sizes(threats: tuple[Threat, ...], step_sizes: StepSizes | None) -> list[float]:
    """Step sizes, one per threat; ε/4 unless given."""
    return [threat.radius / 4 for threat in threats] if step_sizes is None else [float(size) for size in step_sizes]
