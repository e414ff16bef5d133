"""Optimizers by name; the keyword-only arguments are their recipe fields, with their ranges."""

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from generalist.core.registry import Registry
from generalist.core.types import NonNegativeFloat, PositiveFloat

OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = Registry("optimizer", called="parameters, *, lr")

BelowOne = Annotated[float, Field(ge=0, lt=1)]


@OPTIMIZERS.register("sgd")
def sgd(
    parameters: list[nn.Parameter],
    *,
    lr: PositiveFloat,
    momentum: BelowOne = 0.9,
    weight_decay: NonNegativeFloat = 0.0,
    nesterov: bool = False,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)


@OPTIMIZERS.register("adam")
def adam(
    parameters: list[nn.Parameter],
    *,
    lr: PositiveFloat = 1e-4,
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0,
) -> torch.optim.Optimizer:
    """Adam."""
    return torch.optim.Adam(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


@OPTIMIZERS.register("adamw")
def adamw(
    parameters: list[nn.Parameter],
    *,
    lr: PositiveFloat = 1e-3,
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.01,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
