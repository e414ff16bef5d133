"""A look at somebody's images: how many of which classes, how large, gray or in colour, damaged or not."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.rng import generator
from generalist.data.folder import read_folder
from generalist.data.holdout import mixed_order
from generalist.data.images import ImageFacts, examine, in_channels, resize
from generalist.data.npz import read_npz
from generalist.data.splits import ArraySplit, FileSplit, Parts, Split, check_labels

MOST_FILES = 20_000
"""Of more files than that a fair sample is looked at."""
SAMPLE = 256
"""Images that are compared with each other."""
_PIECE = 64

Told = Callable[[int, int], None]
"""(files looked at, files to look at) → nothing."""


@dataclass(frozen=True)
class Survey:
    """What a folder of images or an .npz file holds.

    Attributes:
        name: `folder` or `npz`, the dataset's name in a recipe.
        root: The folder or file.
        counts: Training images by class, those that cannot be read left out.
        tests: Images of its own test split; 0 where it has none.
        sides: How many images have which (height, width).
        gray: How many of the images that were looked at are gray.
        broken: The files that cannot be read.
        looked_at: Images that were looked at.
        total: Images that there are.
    """

    name: str
    root: Path
    counts: dict[str, int]
    tests: int
    sides: Counter[tuple[int, int]]
    gray: int
    broken: tuple[str, ...]
    looked_at: int
    total: int
    _train: Split

    @property
    def is_gray(self) -> bool:
        return self.gray == self.looked_at - len(self.broken)

    @property
    def short_side(self) -> int:
        """The median of the shorter sides."""
        sides = sorted(min(side) for side, count in self.sides.items() for _ in range(count))
        return sides[len(sides) // 2]

    def sample(self, *, size: int, channels: int) -> tuple[Tensor, Tensor]:
        """Some images [N, C, size, size] in [0, 1] and their labels [N], classes in about their shares."""
        chosen = mixed_order(self._train.labels, generator(0, "survey"))[:SAMPLE]
        split = self._train.take(chosen)
        if isinstance(split, FileSplit):
            split = replace(split, size=size, channels=channels)
        images = split.read(torch.arange(len(split)))
        if images.shape[1] != channels:
            images = in_channels(images, channels=channels)
        images = resize(images, size=size)
        return images.float() / (255 if images.dtype == torch.uint8 else 1), split.labels


def survey_images(path: Path, *, told: Told | None = None) -> Survey:
    """Look at a folder of images, or at an .npz file."""
    is_array = path.suffix == ".npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is worth saying is said of the recipe
        parts = read_npz(path) if is_array else read_folder(path, size=None)
    assert parts.train is not None
    if len(parts.classes) < 2:
        raise UserError(f"{path} has one class, {parts.classes[0]!r}; a classifier needs two or more")
    check_labels(str(path), "train", parts.train.labels, len(parts.classes))
    return _of_arrays(path, parts) if is_array else _of_files(path, parts, told or (lambda done, total: None))


def _of_arrays(path: Path, parts: Parts) -> Survey:
    split = parts.train
    assert isinstance(split, ArraySplit)
    sides = Counter({(split.shape[1], split.shape[2]): len(split)})
    total = sum(len(part) for part in parts[1:4] if isinstance(part, Split))
    gray = len(split) if split.shape[0] == 1 else 0
    tests = len(parts.test) if parts.test is not None else 0
    return Survey("npz", path, _counts(split, parts), tests, sides, gray, (), len(split), total, split)


def _of_files(path: Path, parts: Parts, told: Told) -> Survey:
    train = parts.train
    assert isinstance(train, FileSplit)
    others = [split for split in (parts.test, parts.validation) if isinstance(split, FileSplit)]
    files = [file for split in (train, *others) for file in split.paths]
    looked_at = files if len(files) <= MOST_FILES else files[:: -(-len(files) // MOST_FILES)]
    facts = dict(zip(looked_at, _examined(looked_at, told), strict=True))
    broken = tuple(sorted(file for file, found in facts.items() if found is None))
    good = [found for found in facts.values() if found is not None]
    if not good:
        raise UserError(f"{path}: none of {len(looked_at)} image files can be read, such as {broken[0]}")
    fine = torch.tensor([facts.get(file, True) is not None for file in train.paths])
    kept = train.take(fine.nonzero()[:, 0])
    tests = len(parts.test) if parts.test is not None else 0
    sides = Counter((one.height, one.width) for one in good)
    gray = sum(one.gray for one in good)
    return Survey(
        "folder", path, _counts(kept, parts), tests, sides, gray, broken, len(looked_at), len(files), kept
    )  # fmt: skip


def _examined(files: Sequence[str], told: Told) -> Iterator[ImageFacts | None]:
    with ThreadPoolExecutor(max_workers=2) as pool:  # Pillow decodes without holding Python's lock
        for start in range(0, len(files), _PIECE):
            yield from pool.map(examine, files[start : start + _PIECE])
            told(min(start + _PIECE, len(files)), len(files))


def _counts(split: Split, parts: Parts) -> dict[str, int]:
    counts = split.labels.bincount(minlength=len(parts.classes)).tolist()
    return dict(zip(parts.classes, counts, strict=True))
