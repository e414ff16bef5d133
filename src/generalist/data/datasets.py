"""The datasets by name, and the one way to load them."""

import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.registry import Registry
from generalist.core.rng import generator
from generalist.data import names
from generalist.data.cifar import read_cifar10, read_cifar100
from generalist.data.folder import read_folder, read_imagenet, readable
from generalist.data.holdout import hold_out, mixed_order
from generalist.data.idx import read_mnist_like
from generalist.data.images import resize
from generalist.data.locate import MissingData, data_root
from generalist.data.npz import read_npz
from generalist.data.sources import SOURCES, obtain
from generalist.data.splits import ArraySplit, Dataset, DataWarning, Parts, Split, check_labels
from generalist.data.svhn import read_svhn

DATASETS: Registry[Callable[..., Parts]] = Registry("dataset", runtime=("size",))
_TEST_SHARE = 0.2
MOST_BYTES = 2**34
"""Of resized images that are kept in memory."""
_OWN_ROOT = ("folder", "npz")


@DATASETS.register("digits")
def digits(root: Path, *, size: int | None) -> Parts:
    """The 1797 handwritten digits of 8 × 8 that come with scikit-learn; always the same fifth is the test split."""
    package = find_spec("sklearn")  # importing it takes seconds, its file is all that is wanted
    if package is None or not package.submodule_search_locations:
        raise UserError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, delimiter=","))  # 64 gray levels from 0 to 16, then the label
    images = (table[:, :-1] * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    split = ArraySplit(images, table[:, -1].long())
    kept, held = _test_part(split.labels)
    return Parts(names.DIGITS, split.take(kept), split.take(held))


@DATASETS.register("mnist")
def mnist(root: Path, *, size: int | None) -> Parts:
    return read_mnist_like("mnist", root, "MNIST", names.DIGITS)


@DATASETS.register("fashion-mnist")
def fashion_mnist(root: Path, *, size: int | None) -> Parts:
    return read_mnist_like("fashion-mnist", root, "FashionMNIST", names.FASHION)


@DATASETS.register("cifar10")
def cifar10(root: Path, *, size: int | None) -> Parts:
    return read_cifar10(root, names.CIFAR10)


@DATASETS.register("cifar100")
def cifar100(root: Path, *, size: int | None) -> Parts:
    return read_cifar100(root, names.CIFAR100)


@DATASETS.register("svhn")
def svhn(root: Path, *, size: int | None) -> Parts:
    return read_svhn(root, names.DIGITS)


@DATASETS.register("imagenet")
def imagenet(root: Path, *, size: int | None) -> Parts:
    return read_imagenet(root, size=size)


@DATASETS.register("folder")
def folder(root: Path, *, size: int | None) -> Parts:
    return read_folder(root, size=size)


@DATASETS.register("npz")
def npz(root: Path, *, size: int | None) -> Parts:
    return read_npz(root)


def load_dataset(
    name: str,
    *,
    root: Path | str | None = None,
    validation: float = 0.1,
    seed: int = 0,
    size: int | None = None,
    download: bool = False,
    limit: int | None = None,
) -> Dataset:
    """The dataset with a seeded, stratified share of train held out as validation; test never depends on the seed."""
    _check_options(name, root, validation=validation, size=size, limit=limit)
    parts = _read(name, data_root(root), size=size, download=download)
    for part, split in (("train", parts.train), ("test", parts.test), ("validation", parts.validation)):
        if split is not None:
            if not len(split):
                raise UserError(f"{name}: the {part} split is empty; it needs at least one image")
            check_labels(name, part, split.labels, len(parts.classes))
    train, test = _with_test(name, parts)
    train, held = _with_validation(name, train, parts.validation, share=validation, seed=seed)
    splits = [_limited(_mixed(split), limit, seed) for split in (train, held)]
    splits.append(_limited(_mixed(test), limit, 0))  # the same for every seed
    splits = readable(name, splits)
    if size is not None:
        splits = [_resized(split, size) for split in splits]
    train, held, test = splits
    return Dataset(name, train=train, validation=held, test=test, classes=parts.classes)


def _check_options(
    name: str, root: Path | str | None, *, validation: float, size: int | None, limit: int | None
) -> None:
    DATASETS.get(name)
    if name in _OWN_ROOT and root is None:
        raise UserError(f"dataset {name!r} needs a root: the {'.npz file' if name == 'npz' else 'folder'} to read")
    if not 0 <= validation < 1:
        raise UserError(f"validation is the share of train to hold out, at least 0 and below 1, got {validation}")
    for option, value in (("size", size), ("limit", limit)):
        if value is not None and value < 1:
            raise UserError(f"{option} must be at least 1, got {value}")


def _read(name: str, root: Path, *, size: int | None, download: bool) -> Parts:
    read = DATASETS.get(name)
    try:
        return read(root, size=size)
    except MissingData:
        if not download or name not in SOURCES:
            raise
    obtain(name, root, mirror=os.environ.get("GENERALIST_MIRROR"))
    return read(root, size=size)


def _test_part(labels: Tensor) -> tuple[Tensor, Tensor]:
    """(train, test) indices, the same for every seed, so that runs with different seeds can be compared."""
    return hold_out(labels, _TEST_SHARE, generator(0, "test"))


def _with_test(name: str, parts: Parts) -> tuple[Split, Split]:
    if parts.test is not None:
        return parts.train, parts.test
    kept, held = _test_part(parts.train.labels)
    if not len(held):
        raise UserError(
            f"{name}: {len(parts.train)} images leave none for a test split; give a test split or more images"
        )
    warnings.warn(
        f"{name}: no test split, so {len(held)} of {len(parts.train)} images are held out as one",
        DataWarning,
        stacklevel=3,
    )
    return parts.train.take(kept), parts.train.take(held)


def _with_validation(name: str, train: Split, given: Split | None, *, share: float, seed: int) -> tuple[Split, Split]:
    if given is not None:
        return train, given
    if share == 0:
        return train, train.take(torch.arange(0))
    kept, held = hold_out(train.labels, share, generator(seed, "validation"))
    if not len(held):
        raise UserError(
            f"{name}: {len(train)} training images leave none for validation; give validation=0 or more images"
        )
    return train.take(kept), train.take(held)


def _mixed(split: Split) -> Split:
    """A split stored class by class, mixed (always alike): its first images are then a fair sample of it."""
    steps = split.labels.diff()
    if len(split) < 2 or (steps < 0).any() or not steps.any():
        return split
    return split.take(mixed_order(split.labels, generator(0, "mixed")))


def _limited(split: Split, limit: int | None, seed: int) -> Split:
    if limit is None or limit >= len(split):
        return split
    return split.take(mixed_order(split.labels, generator(seed, "limit"))[:limit])


def _resized(split: Split, size: int) -> Split:
    if not isinstance(split, ArraySplit):
        return split
    room = len(split) * split.shape[0] * size**2
    if room > MOST_BYTES:
        raise UserError(f"{len(split)} images of size {size} take {room >> 30} GiB of memory; choose a smaller size")
    return ArraySplit(resize(split.images, size=size), split.labels)
