"""Gradients for the weights, outside of the one backward pass of a step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from generalist.attacks import loss_scale


def weight_gradients(loss: Tensor, weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """∇ loss for each weight, zeros for those that the loss does not depend on.

    The loss is that of the images on this rank; `StepContext.batch_mean` makes it that of the whole batch.
    """
    scale = loss_scale(loss.device)
    found = torch.autograd.grad(loss * scale, list(weights), allow_unused=True)
    return [
        torch.zeros_like(weight) if gradient is None else gradient / scale
        for weight, gradient in zip(weights, found, strict=True)
    ]


def with_gradients(value: Tensor, weights: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> Tensor:
    """A loss of this value whose backward pass gives the weights these gradients."""
    line = sum(
        ((weight * gradient.detach()).sum() for weight, gradient in zip(weights, gradients, strict=True)),
        start=torch.zeros_like(value),
    )
    return value.detach() + line - line.detach()
