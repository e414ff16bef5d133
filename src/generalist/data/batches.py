"""Batches as a pure function of (seed, epoch, step)."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams
from generalist.core.types import Batch
from generalist.data.augment import Augment
from generalist.data.augment import augment as augmented
from generalist.data.files import FileReader, whole
from generalist.data.sampling import drawn_ids, places
from generalist.data.splits import FileSplit, Split

Key = tuple[int, str, int]


def steps_per_epoch(split: Split, *, batch_size: int, drop_last: bool = True) -> int:
    """How many batches one pass has."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}")
    if not len(split) or (drop_last and batch_size > len(split)):
        raise UserError(f"batch_size {batch_size} is more than the {len(split)} images; give at most that many")
    return len(split) // batch_size if drop_last else math.ceil(len(split) / batch_size)


def batches(
    split: Split,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    augment: Augment | None = None,
    device: torch.device | str = "cpu",
    workers: int = 0,
    drop_last: bool = True,
    balance: float = 0.0,
) -> Iterator[Batch]:
    """The shuffled training batches of one epoch, from step `start` on; `balance` as `sampling.drawn_ids` has it."""
    steps = steps_per_epoch(split, batch_size=batch_size, drop_last=drop_last)
    if not 0 <= start <= steps:
        raise UserError(f"step {start} is not in an epoch of {steps} steps")
    order = drawn_ids(split.labels, seed=seed, epoch=epoch, balance=balance)
    chunks = order.split(batch_size)[start:steps]
    return read_batches(split, chunks, key=(seed, "augment", epoch), augment=augment, device=device, workers=workers)


def sequential_batches(
    split: Split,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    workers: int = 0,
    limit: int | None = None,
    share: slice = slice(None),
) -> Iterator[Batch]:
    """The images as they come, once each, the last batch as small as it is; only the first `limit` if given.

    `share` picks some of the batches; the others are not even read.
    """
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}")
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, got {limit}")
    ids = torch.arange(len(split))[:limit]
    chunks = ids.split(batch_size)[share] if len(ids) else ()
    return read_batches(split, chunks, key=None, augment=None, device=device, workers=workers)


def read_batches(
    split: Split,
    chunks: Sequence[Tensor],
    *,
    key: Key | None,
    augment: Augment | None,
    device: torch.device | str,
    workers: int,
) -> Iterator[Batch]:
    """The images of each chunk of ids; augmented with the streams that `key` names."""
    if workers < 0:
        raise UserError(f"workers must be at least 0, got {workers}")
    device = torch.device(device)
    if isinstance(split, FileSplit):
        return _from_files(split, chunks, key=key, augment=augment, device=device, workers=workers)
    return _from_memory(split, chunks, key=key, augment=augment, device=device)


def _from_memory(
    split: Split, chunks: Sequence[Tensor], *, key: Key | None, augment: Augment | None, device: torch.device
) -> Iterator[Batch]:
    """The bytes go to the device first: augmenting and widening them is cheaper there."""
    for ids in chunks:
        where = places(ids)
        x, y, here = (_move(tensor, device) for tensor in (split.read(where), split.labels[where], ids))
        if augment is not None and key is not None:
            x = augmented(x, ImageStreams(*key, ids=here), augment)
        yield Batch(_unit(x), y, here)


def _from_files(
    split: FileSplit,
    chunks: Sequence[Tensor],
    *,
    key: Key | None,
    augment: Augment | None,
    device: torch.device,
    workers: int,
) -> Iterator[Batch]:
    """Decoded and augmented in the workers, which torch keeps to one thread each."""
    loader = DataLoader(
        FileReader(split, key=key, augment=augment),
        batch_sampler=[ids.tolist() for ids in chunks],
        num_workers=min(workers, len(chunks)),
        collate_fn=whole,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # else the loader draws its workers' seeds from the global one
    )
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        x, y, ids = (_move(tensor, device) for tensor in batch[:3])
        yield Batch(_unit(x), y, ids)


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


def _unit(x: Tensor) -> Tensor:
    """float32 in [0, 1], channels last."""
    x = x.contiguous(memory_format=torch.channels_last)
    return x if x.is_floating_point() else x.float().div_(255)
