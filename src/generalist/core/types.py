"""The shapes of things that travel between the layers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.rng import Source
from generalist.core.threat import parse_fraction

StateTree = dict[str, Tensor]
"""Tensors by name, as a module's state_dict has them."""


class Batch(NamedTuple):
    """Images [B, C, H, W] float32 in [0, 1], labels [B] int64, and each image's index in its split [B] int64."""

    x: Tensor
    y: Tensor
    ids: Tensor


@dataclass(frozen=True)
class LossTerms:
    """A loss and what it is made of; everything stays on the device."""

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


Criterion = Callable[[Tensor, Tensor], Tensor]
"""(logits [B, K], labels [B]) → loss of each image [B], to be raised by an attack."""


class Objective(Protocol):
    """How a batch becomes a loss, including which adversarial examples are made."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Source, epoch: float) -> LossTerms: ...


def _fraction(value: Any) -> Fraction:
    try:
        return parse_fraction(value)
    except UserError as error:
        raise ValueError(str(error)) from None


def _plain(value: Fraction) -> float | str:
    return str(value) if value.denominator not in (1, 2, 4, 5, 10, 20, 100) else float(value)


Exact = Annotated[Fraction, BeforeValidator(_fraction), PlainSerializer(_plain)]
"""A number kept exact: 8/255, 1/3, 0.1."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
