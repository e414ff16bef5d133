"""Folders of image files, one folder for each class."""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.data.images import SMALL, decode, looks_whole, open_image
from generalist.data.locate import MissingData
from generalist.data.splits import ArraySplit, DataWarning, FileSplit, Parts, Split

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")
UNREADABLE = 0.01
"""Up to this share of files that cannot be read is left out; a folder with more of them is refused."""
LISTED = 10
MANY = 100_000
"""So many files take minutes to look at, at every start: where there are more, damage shows when it is read."""
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


def readable(name: str, splits: Sequence[Split], *, unreadable: float = UNREADABLE) -> list[Split]:
    """Splits without the files that cannot be read; decoded once and for all where all of them fit in memory.

    More than the share `unreadable` of such files is refused.

    Where they do not, files are looked at without decoding them, which misses some of the damage.
    """
    total = sum(len(split) for split in splits if isinstance(split, FileSplit))
    fits = fits_in_memory(splits)
    if not total or (total > MANY and not fits):
        return list(splits)
    check = _decoded if fits else _looked_at
    found = [check(split) if isinstance(split, FileSplit) else (split, []) for split in splits]
    bad = sorted(path for _, unreadable in found for path in unreadable)
    if bad:
        more = f" and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
        listed = ", ".join(bad[:LISTED]) + more
        if len(bad) > unreadable * total:
            raise UserError(
                f"{name}: cannot read the images {listed} ({len(bad)} of {total}); replace or"
                f" remove them, or allow for a larger share (data.unreadable)"
            )
        warnings.warn(
            f"{name}: {len(bad)} of {total} images cannot be read and are left out: {listed}", DataWarning, stacklevel=3
        )
    return [split for split, _ in found]


def _decoded(split: FileSplit) -> tuple[Split, list[str]]:
    """The images that can be read, and the files that cannot."""
    images = torch.empty(len(split), *split.shape, dtype=torch.uint8)
    kept, bad = list[int](), list[str]()

    def read(path: str) -> Tensor | None:
        try:
            return decode(path, size=split.size, channels=split.channels)
        except UserError:
            return None

    with ThreadPoolExecutor(max_workers=2) as pool:  # Pillow decodes without holding Python's lock
        for index, image in enumerate(pool.map(read, split.paths)):
            if image is None:
                bad.append(split.paths[index])
            else:
                images[len(kept)] = image
                kept.append(index)
    return ArraySplit(images[: len(kept)], split.labels[torch.tensor(kept, dtype=torch.int64)]), bad


def _looked_at(split: FileSplit) -> tuple[Split, list[str]]:
    with ThreadPoolExecutor(max_workers=8) as pool:  # which mostly wait for the disk
        fine = torch.tensor(list(pool.map(looks_whole, split.paths)), dtype=torch.bool)
    bad = [split.paths[index] for index in (~fine).nonzero()[:, 0].tolist()]
    return (split.take(fine.nonzero()[:, 0]) if bad else split), bad


def fits_in_memory(splits: Sequence[Split]) -> bool:
    """Whether the decoded images are few enough to keep."""
    return sum(len(split) * prod(split.shape) for split in splits) <= _MEMORY


def _parts(folders: dict[str, Path], *, size: int | None) -> Parts:
    others: Counter[str] = Counter()
    listing = {part: _list(folder, others) for part, folder in folders.items()}
    classes = tuple(sorted({name for files in listing.values() for name in files}))
    for part, files in listing.items():
        if not any(files.values()):
            raise UserError(
                f"{folders[part]} has no images in class folders; put them in <class>/ as {', '.join(EXTENSIONS)}"
            )
    if others:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(others.items()))
        warnings.warn(f"not read, as no kind of image that is known here: {kinds}", DataWarning, stacklevel=5)
    size = size or _natural_size([path for files in listing["train"].values() for path in files])
    splits = {part: _split(files, classes, size) for part, files in listing.items()}
    return Parts(classes, splits["train"], splits.get("test"), splits.get("val"))


def _list(folder: Path, others: Counter[str]) -> dict[str, list[str]]:
    """The sorted image files of every class; what else is there is counted by its ending."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    files: dict[str, list[str]] = {}
    for name in names:
        entries = [entry for entry in os.scandir(folder / name) if not entry.name.startswith(".")]
        files[name] = sorted(entry.path for entry in entries if entry.name.lower().endswith(EXTENSIONS))
        rest = (entry for entry in entries if not entry.name.lower().endswith(EXTENSIONS))
        others.update("folders" if entry.is_dir() else Path(entry.name).suffix.lower() or "no ending" for entry in rest)
    return files


def _split(files: dict[str, list[str]], classes: tuple[str, ...], size: int) -> FileSplit:
    index = {name: n for n, name in enumerate(classes)}
    labels = torch.tensor([index[name] for name, paths in files.items() for _ in paths], dtype=torch.int64)
    return FileSplit([path for paths in files.values() for path in paths], labels, size)


def _natural_size(paths: Sequence[str]) -> int:
    """The side of the images if a sample of them is square, small and all alike, else 224."""
    sample = paths[:: max(1, len(paths) // _SAMPLE)]
    sizes = {size for path in sample if (size := _size_of(path))}
    width, height = next(iter(sizes), (0, 0))
    return width if len(sizes) == 1 and width == height <= SMALL else _SIZE


def _size_of(path: str) -> tuple[int, int] | None:
    try:
        return open_image(path).size
    except UserError:
        return None  # it is named later, with all others
