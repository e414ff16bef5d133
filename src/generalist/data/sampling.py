"""Which images an epoch draws, and how often: each once, or rare classes more often."""

import torch
from torch import Tensor

from generalist.core.rng import generator

_SHIFT = 40
"""Bits of an id that are the image's place in its split; those above count how often the epoch drew it before."""


def drawn_ids(labels: Tensor, *, seed: int, epoch: int, balance: float = 0.0) -> Tensor:
    """The ids of an epoch in their order, as many as there are images.

    Class k of n_k images is drawn in proportion to n_k^(1 − balance): 0 is every image once, 1 every class alike.
    Within a class images take turns, so none is drawn a second time before all of them were drawn once. The result
    depends on (seed, epoch) alone. An image that is drawn again has another id, and so random streams of its own.
    """
    order = torch.randperm(len(labels), generator=generator(seed, "order", epoch))
    if not balance:
        return order
    mixed = order[labels[order].argsort(stable=True)]  # class by class, shuffled within
    counts = labels.bincount()
    quotas = _quotas(counts, balance, generator(seed, "quotas", epoch))
    ids = []
    for members, quota in zip(mixed.split(counts.tolist()), quotas.tolist(), strict=True):
        turns = torch.arange(quota)
        ids.append(members[turns % max(len(members), 1)] + ((turns // max(len(members), 1)) << _SHIFT))
    drawn = torch.cat(ids)
    return drawn[torch.randperm(len(drawn), generator=generator(seed, "drawn", epoch))]


def places(ids: Tensor) -> Tensor:
    """The places of these images in their split."""
    return ids & ((1 << _SHIFT) - 1)


def _quotas(counts: Tensor, balance: float, source: torch.Generator) -> Tensor:
    """How many images of each class, as many as there are in all; what is not whole is rounded at random."""
    weights = torch.where(counts > 0, counts.double() ** (1 - balance), 0.0)
    bounds = weights.cumsum(0) / weights.sum() * counts.sum()
    offset = torch.rand((), generator=source, dtype=torch.float64)
    below = (bounds - offset).ceil().long().clamp(0, int(counts.sum()))
    below[-1] = counts.sum()
    return below.diff(prepend=below.new_zeros(1))
