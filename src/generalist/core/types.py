"""The types that all layers share: batches, losses, the context of a step, and numbers with a range."""

from collections.abc import Callable, Sequence
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
    """A batch of labelled images.

    Args:
        x: images [B, C, H, W], float32 in [0, 1].
        y: labels [B], int64.
        ids: index of each image in its split [B], int64; it names the image's random streams. Bits from the 40th on
            count how often a balanced epoch drew the image before.
        extra: bool [B], true for images of `data.extra`, which come last; None where there are none.

    Example:
        >>> import torch
        >>> from generalist import Batch
        >>> batch = Batch(x=torch.rand(2, 3, 32, 32), y=torch.tensor([0, 7]), ids=torch.arange(2))
        >>> batch.x.shape, batch.extra
        (torch.Size([2, 3, 32, 32]), None)
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    extra: Tensor | None = None


@dataclass(frozen=True)
class LossTerms:
    """The loss of a batch and its terms, which are only reported. Everything stays on the device.

    Args:
        total: the loss that is minimised, a scalar with a gradient.
        parts: scalars by name, detached; their means over an epoch are written to the metrics.

    Example:
        >>> import torch
        >>> from generalist import LossTerms
        >>> clean, robust = torch.tensor(0.5), torch.tensor(1.5)
        >>> LossTerms((clean + robust) / 2, {"clean": clean, "robust": robust}).total
        tensor(1.)
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


Criterion = Callable[[Tensor, Tensor], Tensor]
"""(logits [B, K], labels [B]) → loss per image [B], which an attack maximises."""


Loss = Callable[[], LossTerms]
"""The loss of a batch that is attacked already, under the weights at the time of the call."""


class BatchTeam(Protocol):
    """The ranks that share one batch: what a step needs of `distributed.ranks.Team`.

    A protocol, because core comes before distributed and does not know torch.distributed.
    """

    @property
    def size(self) -> int:
        """Number of ranks."""

    def all_reduce_(self, tensors: Sequence[Tensor], *, purpose: str) -> None:
        """Each tensor ← its sum over the ranks. `purpose` is the entry of the traffic record."""

    def all_reduce(self, tensor: Tensor, *, purpose: str) -> Tensor:
        """The sum over the ranks as part of the autograd graph."""


@dataclass(frozen=True)
class StepContext:
    """What an objective may need besides the batch.

    Attributes:
        generator: random numbers per image, one stream for each of the B images.
        shared: random numbers per batch, the same on every rank and in every part of the batch.
        progress: how much of training is done, 0 to 1.
        extra: bool [B], true for images that are not the dataset's own (`data.extra`); None where there are none.
        team: the ranks that share the batch; None where this process has all of it.
        share: this rank's share of the images of the batch, in (0, 1].
    """

    generator: ImageStreams
    shared: ImageStreams
    progress: float = 0.0
    extra: Tensor | None = None
    team: BatchTeam | None = None
    share: float = 1.0

    def __getitem__(self, part: slice) -> "StepContext":
        """The context of a part of the images. Every part draws the same numbers from `shared`."""
        extra = None if self.extra is None else self.extra[part]
        return replace(self, generator=self.generator[part], shared=self.shared[:], extra=extra)

    def batch_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Means over this rank's images → means over the whole batch, by one all-reduce if a team shares it."""
        if self.team is None or self.team.size == 1:
            return list(tensors)
        weighted = [tensor * self.share for tensor in tensors]
        self.team.all_reduce_(weighted, purpose="gradients")
        return weighted


def step_context(
    *key: Key,
    ids: Tensor,
    progress: float = 0.0,
    extra: Tensor | None = None,
    team: BatchTeam | None = None,
    share: float = 1.0,
) -> StepContext:
    """The context of the step that `key` names, for the images with these ids [B] in their split."""
    shared = ImageStreams(*key, "shared", ids=torch.zeros(1, dtype=torch.int64, device=ids.device))
    return StepContext(ImageStreams(*key, ids=ids), shared, progress, extra, team, share)


class Objective(Protocol):
    """Attacks the batch when it is called, and returns the loss of the result. The loss can be taken more than once."""

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
"""The bounds are far from anything useful: a number beyond them is a mistake, and would fail later with less to say."""
Steps = Annotated[int, Field(ge=1, le=10_000)]
"""Number of steps of an attack that evaluates a model."""
InnerSteps = Annotated[int, Field(ge=1, le=1000)]
"""Number of steps of an attack within one step of training."""
