"""Adversarial weight perturbation (Wu et al. 2020), around any objective."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from generalist.core.types import Loss, StepContext
from generalist.objectives.gradients import weight_gradients

TINY = 1e-12


@contextmanager
def perturbed_weights(
    model: nn.Module,
    loss: Loss,
    gamma: float,
    *,
    context: StepContext,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    buffers: Sequence[Tensor] | None = None,
) -> Iterator[None]:
    """Inside, every weight matrix or kernel is w + γ·‖w‖·g/‖g‖, with g = ∇ loss over the whole batch.

    The batch is not attacked again: the ascent and the step see the same images. `buffers` (the model's if not given)
    are restored after the ascent, so that a batch counts once in BatchNorm's statistics. The weights are restored at
    the end.
    """
    if gamma == 0:
        yield
        return
    weights = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    statistics = [(buffer, buffer.clone()) for buffer in (model.buffers() if buffers is None else buffers)]
    with autocast():
        gradients = context.batch_mean(weight_gradients(loss().total, weights))
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for buffer, old in statistics:
            buffer.copy_(old)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.add_(_ascent(weight, gradient, gamma))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)


def _ascent(weight: Tensor, gradient: Tensor, gamma: float) -> Tensor:
    return gradient * (gamma * weight.norm() / gradient.norm().clamp_min(TINY))
