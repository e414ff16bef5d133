"""The shapes of things that travel between the layers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams, Key
from generalist.core.threat import parse_fraction

StateTree = dict[str, Tensor]
"""Tensors by name, as a module's state_dict has them."""


class Batch(NamedTuple):
    """Images [B, C, H, W] float32 in [0, 1], labels [B] int64, and each image's index in its split [B] int64.

    Images of `data.extra` come last; `extra` [B] marks them, where there are any.
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    extra: Tensor | None = None


@dataclass(frozen=True)
class LossTerms:
    """A loss and what it is made of; everything stays on the device."""

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


Criterion = Callable[[Tensor, Tensor], Tensor]
"""(logits [B, K], labels [B]) → loss of each image [B], to be raised by an attack."""


Loss = Callable[[], LossTerms]
"""The loss of a prepared batch, under the weights as they are when it is called."""


@dataclass(frozen=True)
class StepContext:
    """What an objective may need besides the batch: randomness, and how far training is.

    `generator` draws for each image, `shared` once for the whole batch, however it is split. `progress` is the share of
    training done. `extra` [B] says which images are not the dataset's own (`data.extra`).
    """

    generator: ImageStreams
    shared: ImageStreams
    progress: float = 0.0
    extra: Tensor | None = None

    def __getitem__(self, part: slice) -> "StepContext":
        """Of a part of the batch; what the batch shares is drawn anew, and so alike, in every part."""
        extra = None if self.extra is None else self.extra[part]
        return replace(self, generator=self.generator[part], shared=self.shared[:], extra=extra)


def step_context(*key: Key, ids: Tensor, progress: float = 0.0, extra: Tensor | None = None) -> StepContext:
    """The moment named by `key`, for the images `ids`."""
    shared = ImageStreams(*key, "shared", ids=torch.zeros(1, dtype=torch.int64, device=ids.device))
    return StepContext(ImageStreams(*key, ids=ids), shared, progress, extra)


class Objective(Protocol):
    """Makes what a batch is trained on, attacks included; the loss of that can then be taken, more than once."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss: ...


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
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Natural = Annotated[int, Field(ge=0, le=1_000_000)]
"""The bounds are far from anything useful: what is beyond them is a slip, and would only fail later and worse."""
Steps = Annotated[int, Field(ge=1, le=10_000)]
"""Of an attack that judges."""
InnerSteps = Annotated[int, Field(ge=1, le=1000)]
"""Of an attack that trains, at every step of training."""
