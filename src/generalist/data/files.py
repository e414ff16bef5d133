"""Reading batches of image files, in this process or in a worker."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams
from generalist.core.types import Batch
from generalist.data.augment import BOX_DRAWS, Augment, augment, random_boxes
from generalist.data.images import crop, open_in
from generalist.data.sampling import places
from generalist.data.splits import FileSplit

T = TypeVar("T")
_SCALE = (0.08, 1.0)


class FileReader(Dataset[Batch | UserError]):
    """A file split as a torch DataLoader wants it: the ids of a batch in, the batch in uint8 out."""

    def __init__(self, split: FileSplit, *, key: tuple[int, str, int] | None, augment: Augment | None) -> None:
        self._split, self._key, self._augment = split, key, augment

    def __getitems__(self, ids: Sequence[int]) -> Batch | UserError:
        """A mistake is returned, not raised: a worker's exception would arrive with its traceback in the message."""
        where = torch.tensor(ids)
        try:
            return Batch(self._read(where), self._split.labels[places(where)], where)
        except UserError as error:
            return error

    def _read(self, ids: Tensor) -> Tensor:
        spec = self._augment
        if spec is None or self._key is None:
            return self._split.read(places(ids))
        source = ImageStreams(*self._key, ids=ids)
        if spec.scale is None and spec.crop:
            return augment(self._split.read(places(ids)), source, spec)
        scale = spec.scale or _SCALE
        draws = source.uniform(BOX_DRAWS)
        images = torch.stack([self._part(i, draws[n : n + 1], scale) for n, i in enumerate(places(ids).tolist())])
        return augment(images, source, Augment(crop=spec.crop, flip=spec.flip, cutout=spec.cutout))

    def _part(self, index: int, draws: Tensor, scale: tuple[float, float]) -> Tensor:
        image = open_in(self._split.paths[index], self._split.channels)
        top, left, height, width = random_boxes(draws, image.height, image.width, scale=scale)[0].tolist()
        return crop(image, (top, left, height, width), size=self._split.size)


def whole(batch: T) -> T:
    """The collation of what is a batch already."""
    return batch
