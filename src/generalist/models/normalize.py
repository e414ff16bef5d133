"""Normalisation as part of the model, so that ε is always in pixel units."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from generalist.core.errors import UserError


class Normalize(nn.Module):
    """(x - mean) / std per channel; the numbers live in the model's spec, not among its weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def normalization(mean: Sequence[float] | None, std: Sequence[float] | None, *, channels: int) -> nn.Module:
    """The Normalize of these numbers, or the identity where there are none."""
    if mean is None and std is None:
        return nn.Identity()
    if mean is None or std is None:
        raise UserError(f"mean={mean} with std={std}: give both, or neither")
    for field, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise UserError(f"{field} has {len(values)} values; images of {channels} channels need {channels}")
        if not all(math.isfinite(value) for value in values):
            raise UserError(f"{field}={list(values)}: every value must be finite")
    if min(std) <= 0:
        raise UserError(f"std={list(std)}: every value must be above 0")
    return Normalize(mean, std)
