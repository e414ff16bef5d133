"""Folders of image files, one folder for each class."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from generalist.core.errors import UserError
from generalist.data.images import SMALL, decode, open_image
from generalist.data.locate import MissingData
from generalist.data.splits import ArraySplit, DataWarning, FileSplit, Parts, Split

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
_SIZE = 224
_SAMPLE = 32
_MEMORY = 512 * 2**20


def read_folder(root: Path, *, size: int | None, test_only: bool = False) -> Parts:
    """train/<class>/* with test/ or val/ or both beside it, or only <class>/*."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; give one that has train/<class>/ or <class>/ folders of images")
    named = {name: root / name for name in ("train", "test", "val") if (root / name).is_dir()}
    if test_only:
        tested = [named[name] for name in ("test", "val") if name in named]
        if named and not tested:
            warnings.warn(f"{root}: no test folder, so all images of train are used", DataWarning, stacklevel=5)
        return _test_parts(tested[0] if tested else named.get("train", root), size=size, whole=not tested)
    if named and "train" not in named:
        raise UserError(
            f"{root} has {' and '.join(named)} but no train folder; put the training images in train/<class>/"
        )
    if not named:
        return _parts({"train": root}, size=size)
    if "test" not in named and "val" in named:
        named["test"] = named.pop("val")
    return _parts(named, size=size)


def _test_parts(folder: Path, *, size: int | None, whole: bool) -> Parts:
    parts = _parts({"train": folder}, size=size)
    return Parts(parts.classes, None, parts.train, whole=whole)


def read_imagenet(root: Path, *, size: int | None, test_only: bool = False) -> Parts:
    """train/<class>/*.JPEG and val/<class>/*.JPEG in root, or in root/imagenet; val is the test split."""
    for folder in (root, root / "imagenet"):
        if test_only and (folder / "val").is_dir():
            return _test_parts(folder / "val", size=size or _SIZE, whole=False)
        if all((folder / part).is_dir() for part in ("train", "val")):
            return _parts({"train": folder / "train", "test": folder / "val"}, size=size or _SIZE)
    raise MissingData(
        f"imagenet: no train/<class>/ and val/<class>/ in {root} or {root / 'imagenet'}; it cannot be downloaded here, "
        f"get it from image-net.org by hand and say with --root or GENERALIST_DATA where it is"
    )


def in_memory(split: Split) -> Split:
    """The files of a split decoded once and for all."""
    if not isinstance(split, FileSplit):
        return split
    size = split.size
    images = torch.empty(len(split), *split.shape, dtype=torch.uint8)
    with ThreadPoolExecutor(max_workers=2) as pool:  # Pillow decodes without holding Python's lock
        for row, image in zip(images, pool.map(lambda path: decode(path, size=size), split.paths), strict=True):
            row.copy_(image)
    return ArraySplit(images, split.labels)


def fits_in_memory(splits: Sequence[Split]) -> bool:
    """Whether the decoded images are few enough to keep."""
    return sum(len(split) * 3 * split.shape[1] * split.shape[2] for split in splits) <= _MEMORY


def _parts(folders: dict[str, Path], *, size: int | None) -> Parts:
    listing = {part: _list(folder) for part, folder in folders.items()}
    classes = tuple(sorted({name for files in listing.values() for name in files}))
    for part, files in listing.items():
        if not any(files.values()):
            raise UserError(
                f"{folders[part]} has no images in class folders; put them in <class>/ as {', '.join(EXTENSIONS)}"
            )
    size = size or _natural_size([path for files in listing["train"].values() for path in files])
    splits = {part: _split(files, classes, size) for part, files in listing.items()}
    return Parts(classes, splits["train"], splits.get("test"), splits.get("val"))


def _list(folder: Path) -> dict[str, list[str]]:
    """The sorted image files of every class."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    return {
        name: sorted(
            entry.path
            for entry in os.scandir(folder / name)
            if entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith(".")
        )
        for name in names
    }


def _split(files: dict[str, list[str]], classes: tuple[str, ...], size: int) -> FileSplit:
    index = {name: n for n, name in enumerate(classes)}
    labels = torch.tensor([index[name] for name, paths in files.items() for _ in paths], dtype=torch.int64)
    return FileSplit([path for paths in files.values() for path in paths], labels, size)


def _natural_size(paths: Sequence[str]) -> int:
    """The side of the images if a sample of them is square, small and all alike, else 224."""
    sample = paths[:: max(1, len(paths) // _SAMPLE)]
    sizes = {open_image(path).size for path in sample}
    width, height = next(iter(sizes))
    return width if len(sizes) == 1 and width == height <= SMALL else _SIZE
