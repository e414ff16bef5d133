"""Images from outside the dataset in every batch: labelled, pseudo-labelled or generated."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.rng import generator
from generalist.core.types import Batch
from generalist.data.augment import Augment
from generalist.data.batches import batches, read_batches, steps_per_epoch
from generalist.data.npz import read_images
from generalist.data.splits import ArraySplit, Dataset, Split, check_labels

Label = Callable[[Tensor], Tensor]
"""Images [B, C, H, W] in [0, 1] → their classes [B]."""


@dataclass(frozen=True)
class Mixture:
    """A training split and an extra one; `share` of each batch comes from the extra one."""

    own: Split
    extra: Split
    share: float

    def sizes(self, batch_size: int) -> tuple[int, int]:
        """Own and extra images of a batch; at least one of each."""
        extra = min(max(round(self.share * batch_size), 1), batch_size - 1)
        if extra < 1:
            raise UserError(f"data.extra needs batches of at least 2 images, got batch_size {batch_size}")
        return batch_size - extra, extra

    def steps(self, batch_size: int) -> int:
        """An epoch is one pass over the training split; the extra one goes on from epoch to epoch."""
        return steps_per_epoch(self.own, batch_size=self.sizes(batch_size)[0])

    def batches(
        self,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        start: int = 0,
        augment: Augment | None = None,
        device: torch.device | str = "cpu",
        workers: int = 0,
        balance: float = 0.0,
    ) -> Iterator[Batch]:
        """As `data.batches`; extra images come last in a batch and are marked. `balance` is of the training split."""
        own_size, extra_size = self.sizes(batch_size)
        steps = self.steps(batch_size)
        own = batches(
            self.own, batch_size=own_size, seed=seed, epoch=epoch, start=start, augment=augment, device=device,
            workers=workers, balance=balance,
        )  # fmt: skip
        chunks = [self._chunk(seed, epoch * steps + step, extra_size) for step in range(start, steps)]
        key = (seed, "augment extra", epoch)
        extra = read_batches(self.extra, chunks, key=key, augment=augment, device=device, workers=workers)
        for mine, theirs in zip(own, extra, strict=True):
            x, y = torch.cat([mine.x, theirs.x]), torch.cat([mine.y, theirs.y])
            ids = torch.cat([mine.ids, theirs.ids + len(self.own)])
            extra_ones = torch.arange(len(ids), device=ids.device) >= len(mine.ids)
            yield Batch(x.contiguous(memory_format=torch.channels_last), y, ids, extra_ones)

    def _chunk(self, seed: int, step: int, size: int) -> Tensor:
        """The extra images of a step: pass after pass over all of them, each in an order of its own."""
        places = torch.arange(step * size, (step + 1) * size)
        passes, at = places // len(self.extra), places % len(self.extra)
        parts = [_order(seed, int(number), len(self.extra))[at[passes == number]] for number in passes.unique()]
        return torch.cat(parts)


@lru_cache(maxsize=2)
def _order(seed: int, number: int, count: int) -> Tensor:
    return torch.randperm(count, generator=generator(seed, "extra", number))


def read_extra_split(path: Path, dataset: Dataset, *, label: Label | None = None) -> Split:
    """The images of an .npz, fit for the dataset, with their labels or, where it has none, those that `label` gives."""
    images, labels = read_images(path)
    if not len(images):
        raise UserError(f"{path} has no images; data.extra needs at least one")
    if tuple(images.shape[1:]) != dataset.shape:
        raise UserError(f"{path} has images {tuple(images.shape[1:])}, the dataset {dataset.shape}; they must be alike")
    if labels is None:
        if label is None:
            raise UserError(f"{path} has no labels; add y, or give needs: {{labels: …}} a network that labels it")
        white = 255 if images.dtype == torch.uint8 else 1
        labels = torch.cat([label(part.float() / white) for part in images.split(500)])
    check_labels(str(path), "extra", labels, len(dataset.classes))
    return ArraySplit(images, labels)
