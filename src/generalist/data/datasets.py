"""The datasets by name, and the one way to load them."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from generalist.core.errors import UserError, unknown
from generalist.core.registry import Registry
from generalist.core.rng import generator
from generalist.core.user_code import is_reference, is_users, raised
from generalist.data import names
from generalist.data.cifar import read_cifar10, read_cifar100
from generalist.data.folder import UNREADABLE, read_folder, read_imagenet, readable
from generalist.data.holdout import hold_out, mixed_order
from generalist.data.idx import read_mnist_like
from generalist.data.images import in_channels, resize
from generalist.data.locate import MissingData, data_root
from generalist.data.npz import read_npz
from generalist.data.sources import SOURCES, obtain
from generalist.data.splits import ArraySplit, Dataset, DataWarning, FileSplit, Parts, Split, check_labels
from generalist.data.svhn import read_svhn

DATASETS: Registry[Callable[..., Parts]] = Registry(
    "dataset",
    runtime=("size", "test_only"),
    called="root, *, size, test_only",
    doc="""The datasets by name: functions (root, *, size, test_only) → Parts.

    Args:
        root: The folder that has the files, a Path.
        size: The side in pixels that images of files are decoded to; images in memory are resized afterwards.
        test_only: Whether only the test split is wanted; the files of the others may be missing then.

    Returns:
        `generalist.data.Parts`: the names of the classes, and the splits. A missing test split is held out of train.

    Example:
        >>> import generalist, torch
        >>> from generalist.data import ArraySplit, Parts
        >>> @generalist.DATASETS.register("noise")
        ... def noise(root, *, size, test_only):
        ...     images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        ...     split = ArraySplit(images, torch.arange(40) % 2)
        ...     return Parts(("even", "odd"), train=split, test=split)
        >>> generalist.load_dataset("noise").shape
        (1, 8, 8)
    """,
)
_TEST_SHARE = 0.2
MOST_BYTES = 2**34
"""Of resized images that are kept in memory."""
OWN_ROOT = {"folder": "folder", "npz": ".npz file"}
"""Datasets that are a user's own, so that the root is not the common one → what the root is."""


@DATASETS.register("digits")
def digits(root: Path, *, size: int | None, test_only: bool) -> Parts:
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
def mnist(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_mnist_like("mnist", root, "MNIST", names.DIGITS, test_only=test_only)


@DATASETS.register("fashion-mnist")
def fashion_mnist(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_mnist_like("fashion-mnist", root, "FashionMNIST", names.FASHION, test_only=test_only)


@DATASETS.register("cifar10")
def cifar10(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_cifar10(root, names.CIFAR10, test_only=test_only)


@DATASETS.register("cifar100")
def cifar100(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_cifar100(root, names.CIFAR100, test_only=test_only)


@DATASETS.register("svhn")
def svhn(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_svhn(root, names.DIGITS, test_only=test_only)


@DATASETS.register("imagenet")
def imagenet(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_imagenet(root, size=size, test_only=test_only)


@DATASETS.register("folder")
def folder(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_folder(root, size=size, test_only=test_only)


@DATASETS.register("npz")
def npz(root: Path, *, size: int | None, test_only: bool) -> Parts:
    return read_npz(root, test_only=test_only)


def load_dataset(
    name: str,
    *,
    root: Path | str | None = None,
    validation: float = 0.1,
    seed: int = 0,
    size: int | None = None,
    channels: int | None = None,
    download: bool = False,
    limit: int | None = None,
    unreadable: float = UNREADABLE,
) -> Dataset:
    """A dataset with its train, validation and test splits.

    Args:
        name: A name of `DATASETS`, or `module:callable`, a function of the same form.
        root: The folder that has the data; of `npz` and `folder`, the file or folder itself. If not given,
            $GENERALIST_DATA or ~/.cache/generalist.
        validation: The share of train that is held out as validation, 0 ≤ share < 1, drawn class by class.
        seed: Of what is held out and of `limit`; the test split never depends on it.
        size: The side in pixels that images are resized to.
        channels: 1 for gray images, 3 for colour. If not given, files are read in colour and arrays are as they are.
        download: Whether missing files are fetched from their official source.
        limit: At most so many images per split.
        unreadable: The share of files that may be damaged; they are named and left out.

    Returns:
        The Dataset; images are [C, H, W], labels are class indices.

    Example:
        >>> import generalist
        >>> digits = generalist.load_dataset("digits", validation=0.1)
        >>> len(digits.train), len(digits.validation), len(digits.test), digits.shape
        (1295, 143, 359, (1, 8, 8))
    """
    _check_options(name, root, validation=validation, size=size, limit=limit, channels=channels)
    parts = _read(name, data_root(root), size=size, download=download)
    assert parts.train is not None
    for part, split in (("train", parts.train), ("test", parts.test), ("validation", parts.validation)):
        if split is not None:
            if not len(split):
                raise UserError(f"{name}: the {part} split is empty; it needs at least one image")
            check_labels(name, part, split.labels, len(parts.classes))
    train, test = _with_test(name, parts)
    train, held = _with_validation(name, train, parts.validation, share=validation, seed=seed)
    splits = [_limited(_mixed(split), limit, seed) for split in (train, held)]
    splits.append(_limited(_mixed(test), limit, 0))  # the same for every seed
    splits = readable(name, [_in_channels(split, channels) for split in splits], unreadable=unreadable)
    if size is not None:
        splits = [_resized(split, size) for split in splits]
    train, held, test = splits
    return Dataset(name, train=train, validation=held, test=test, classes=parts.classes)


class EvaluationImages(NamedTuple):
    """Images to evaluate on. `origin` is the user's own file or folder; `whole`: all of it, as it has no test split."""

    split: Split
    classes: tuple[str, ...]
    numbered: bool
    origin: Path | None
    whole: bool


def load_evaluation_images(
    data: str | Path,
    *,
    root: Path | str | None = None,
    size: int | None = None,
    channels: int | None = None,
    download: bool = False,
) -> EvaluationImages:
    """The test split of a dataset's name, an .npz file or a folder; all of it where it has none. No train is needed.

    Image files are read with so many channels; arrays have their own.
    """
    name, root = named_source(str(data), root)
    _check_options(name, root, validation=0, size=size, limit=None)
    parts = _read(name, data_root(root), size=size, download=download, test_only=True)
    split = _with_test(name, parts)[1] if parts.test is None else parts.test
    if not len(split):
        raise UserError(f"{data}: the test split is empty; it needs at least one image")
    check_labels(str(data), "test", split.labels, len(parts.classes))
    (split,) = readable(str(data), [_in_channels(_mixed(split), channels if isinstance(split, FileSplit) else None)])
    if size is not None and split.shape[1:] != (size, size):
        height, width = split.shape[1:]
        warnings.warn(f"{data}: images are {height}×{width}, resized to {size}×{size}", DataWarning, stacklevel=3)
        split = _resized(split, size)
    origin = data_root(root).resolve() if name in OWN_ROOT else None
    return EvaluationImages(split, parts.classes, parts.numbered, origin, parts.whole)


def named_source(data: str, root: Path | str | None) -> tuple[str, Path | str | None]:
    """A dataset's name and its root; a path is the root of `npz` or `folder`."""
    path = Path(data).expanduser()
    if data in DATASETS.names():
        return data, root
    if path.suffix != ".npz" and not path.is_dir():
        if is_reference(data):
            return data, root
        if path.suffix or len(path.parts) > 1:
            raise UserError(f"there is no folder {data}; give a dataset's name, an .npz file or a folder of images")
        raise UserError(f"{unknown('dataset', data, DATASETS.names())}, and there is no folder {data}")
    if root is not None:
        raise UserError(f"{data} is a path, and root {root} says where a named dataset is; give one of them")
    return "npz" if path.suffix == ".npz" else "folder", path


def _check_options(
    name: str,
    root: Path | str | None,
    *,
    validation: float,
    size: int | None,
    limit: int | None,
    channels: int | None = None,
) -> None:
    DATASETS.get(name)
    if name in OWN_ROOT and root is None:
        raise UserError(f"dataset {name!r} needs a root (--root, data.root): the {OWN_ROOT[name]} to read")
    if not 0 <= validation < 1:
        raise UserError(f"validation is the share of train to hold out, at least 0 and below 1, got {validation}")
    if channels not in (None, 1, 3):
        raise UserError(f"channels is 1 for gray images or 3 for colour, got {channels}")
    for option, value in (("size", size), ("limit", limit)):
        if value is not None and value < 1:
            raise UserError(f"{option} must be at least 1, got {value}")


def _read(name: str, root: Path, *, size: int | None, download: bool, test_only: bool = False) -> Parts:
    read = partial(_call, name, root, size=size, test_only=test_only)
    try:
        return read()
    except MissingData:
        if not download or name not in SOURCES:
            raise
    obtain(name, root, mirror=os.environ.get("GENERALIST_MIRROR"))
    return read()


def _call(name: str, root: Path, *, size: int | None, test_only: bool) -> Parts:
    """What the reader of that name returns; a user's own may fail in any way."""
    reader = DATASETS.get(name)
    if not is_users(reader):
        return reader(root, size=size, test_only=test_only)
    DATASETS.check(name, {})  # it has no fields but those with defaults
    try:
        parts: Any = reader(root, size=size, test_only=test_only)
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        raise raised("dataset", name, error) from error
    wrong = not isinstance(parts, Parts) or (parts.train is None and (parts.test is None or not test_only))
    if wrong or not all(isinstance(split, Split | None) for split in parts[1:4]):
        what = type(parts).__name__
        raise UserError(
            f"dataset {name!r} returned a {what} without its splits; return Parts(classes, train=…, test=…)"
        )
    return parts


def _test_part(labels: Tensor) -> tuple[Tensor, Tensor]:
    """(train, test) indices, the same for every seed, so that runs with different seeds can be compared."""
    return hold_out(labels, _TEST_SHARE, generator(0, "test"))


def _with_test(name: str, parts: Parts) -> tuple[Split, Split]:
    assert parts.train is not None
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


def _in_channels(split: Split, channels: int | None) -> Split:
    if channels is None or split.shape[0] == channels:
        return split
    if isinstance(split, FileSplit):
        return replace(split, channels=channels)
    ids = torch.arange(len(split))
    return ArraySplit(in_channels(split.read(ids), channels=channels), split.labels)


def _resized(split: Split, size: int) -> Split:
    if not isinstance(split, ArraySplit):
        return split
    room = len(split) * split.shape[0] * size**2
    if room > MOST_BYTES:
        raise UserError(f"{len(split)} images of size {size} take {room >> 30} GiB of memory; choose a smaller size")
    return ArraySplit(resize(split.images, size=size), split.labels)
