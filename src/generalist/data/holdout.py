"""Seeded, stratified choices of images."""

import torch
from torch import Tensor


def _by_class(labels: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Indices class by class and shuffled within, each one's rank in its class, and the size of each class."""
    shuffle = torch.randperm(len(labels), generator=source)
    order = shuffle[labels[shuffle].argsort(stable=True)]
    counts = labels.bincount()
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    return order, rank, counts


def hold_out(labels: Tensor, share: float, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """(kept, held) indices in order; `share` of every class is held, at least one where that leaves one."""
    order, rank, counts = _by_class(labels, source)
    quota = (counts * float(share)).round().long().clamp_min(1).minimum(counts - 1)
    held = rank < quota[labels[order]]
    return order[~held].sort().values, order[held].sort().values


def mixed_order(labels: Tensor, source: torch.Generator) -> Tensor:
    """A shuffle of which every beginning has the classes in about their shares."""
    order, rank, counts = _by_class(labels, source)
    offset = torch.rand(len(counts), generator=source, dtype=torch.float64)
    place = (rank + offset[labels[order]]) / counts[labels[order]]
    return order[place.argsort(stable=True)]
