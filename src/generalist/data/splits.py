"""A dataset and its parts: images and labels, in memory or in files."""

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.files import fingerprint
from generalist.data.images import decode

Shape = tuple[int, int, int]


class DataWarning(UserWarning):
    """Data that can be used but is not what one would expect."""


class Split(ABC):
    """Images with labels; an image's id is its index here."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """(C, H, W) of every image."""

    @abstractmethod
    def read(self, ids: Tensor) -> Tensor:
        """The images of these ids, [B, C, H, W], uint8 or float32 in [0, 1]."""

    @abstractmethod
    def take(self, ids: Tensor) -> "Split":
        """The split that has only these images, in this order."""

    def digest(self) -> str:
        """Of all labels and images; of files, of their names and sizes."""
        found = hashlib.sha256(f"{len(self)} {self.shape}".encode())
        found.update(self.labels.numpy().tobytes())
        for part in self._content():
            found.update(part)
        return found.hexdigest()

    @abstractmethod
    def _content(self) -> Iterator[Any]:
        """What tells these images from others, without decoding any, in pieces of bytes."""

    @abstractmethod
    def labelled(self, labels: Tensor) -> "Split":
        """The same images with other labels."""


@dataclass(frozen=True, eq=False)
class ArraySplit(Split):
    """Images [N, C, H, W] in memory, uint8 or float32 in [0, 1]."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise UserError(
                f"images must be [N, C, H, W] in uint8 or float32, got {list(self.images.shape)} in {self.images.dtype}"
            )
        _check_count(len(self.images), self.labels)
        if self.images.dtype == torch.float32 and len(self.images):
            low, high = (bound.item() for bound in self.images.aminmax())
            if not (low >= 0 and high <= 1):  # so written that NaN fails too
                raise UserError(f"float images must be finite and in [0, 1], got values from {low:g} to {high:g}")

    @property
    def shape(self) -> Shape:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def read(self, ids: Tensor) -> Tensor:
        return self.images[ids]

    def take(self, ids: Tensor) -> "ArraySplit":
        return ArraySplit(self.images[ids], self.labels[ids])

    def _content(self) -> Iterator[Any]:
        for images in self.images.split(4096):
            yield images.contiguous().numpy()

    def labelled(self, labels: Tensor) -> "ArraySplit":
        return ArraySplit(self.images, labels)


@dataclass(frozen=True, eq=False)
class FileSplit(Split):
    """Image files, decoded when read: colour or gray, the shorter side resized, the centre of size × size kept."""

    paths: Sequence[str]
    labels: Tensor
    size: int
    channels: int = 3

    def __post_init__(self) -> None:
        _check_count(len(self.paths), self.labels)

    @property
    def shape(self) -> Shape:
        return self.channels, self.size, self.size

    def read(self, ids: Tensor) -> Tensor:
        return torch.stack([decode(self.paths[i], size=self.size, channels=self.channels) for i in ids.tolist()])

    def take(self, ids: Tensor) -> "FileSplit":
        return replace(self, paths=[self.paths[i] for i in ids.tolist()], labels=self.labels[ids])

    def _content(self) -> Iterator[Any]:
        for path in self.paths:
            yield f"{os.path.basename(path)} {os.path.getsize(path)}\n".encode("utf-8", "surrogateescape")

    def labelled(self, labels: Tensor) -> "FileSplit":
        return replace(self, labels=labels)


def _check_count(count: int, labels: Tensor) -> None:
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise UserError(f"labels must be [N] in int64, got {list(labels.shape)} in {labels.dtype}")
    if len(labels) != count:
        raise UserError(f"{count} images but {len(labels)} labels; every image needs one label")


def check_labels(name: str, part: str, labels: Tensor, classes: int) -> None:
    """Complain about a label that is not one of the classes."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UserError(
            f"{name}: label {wrong[0].item()} in the {part} split is outside "
            f"the {classes} classes; labels go from 0 to {classes - 1}"
        )


class Parts(NamedTuple):
    """What a reader finds; parts that are not there are held out of train.

    A reader that is asked for the test split only need not find a train split: where it has no test split, all of its
    images are (`whole`). `numbered` classes have no names, only their numbers.
    """

    classes: tuple[str, ...]
    train: Split | None
    test: Split | None = None
    validation: Split | None = None
    numbered: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Dataset:
    """Images for training, for selection and for the last word.

    Args:
        name: What the dataset is called.
        train: The images that learners are trained on.
        validation: Held out of train, to select models by; may be empty.
        test: The images that results are reported on. All splits have one shape (C, H, W).
        classes: The names of the classes, in the order of their labels.

    Example:
        >>> import generalist
        >>> digits = generalist.load_dataset("digits")
        >>> len(digits.test), digits.shape, len(digits.classes)
        (359, (1, 8, 8), 10)
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            split = getattr(self, part)
            if not len(split) and part != "validation":
                raise UserError(f"{self.name}: the {part} split is empty; it needs at least one image")
            check_labels(self.name, part, split.labels, len(self.classes))
            if split.shape != self.train.shape:
                raise UserError(
                    f"{self.name}: {part} images are {split.shape} but train images are {self.train.shape}; "
                    f"all splits need one shape"
                )
        counts = self.train.labels.bincount(minlength=len(self.classes))
        if absent := [name for name, count in zip(self.classes, counts.tolist(), strict=True) if not count]:
            some = ", ".join(absent[:10]) + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
            warnings.warn(f"{self.name}: no training image of {some}", DataWarning, stacklevel=2)

    def training_digest(self) -> str:
        """Of what training depends on; a changed one means other images, labels or splits."""
        return fingerprint([list(self.classes), self.train.digest(), self.validation.digest()])

    @property
    def shape(self) -> Shape:
        """(C, H, W) of every image."""
        return self.train.shape

    @property
    def channels(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """The side of the square images."""
        _, height, width = self.shape
        if height != width:
            raise UserError(f"{self.name}: images are {height}×{width}, not square; give a size to make them so")
        return height
