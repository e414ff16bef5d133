"""Arrays in one .npz file."""

import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.data.splits import ArraySplit, DataWarning, Parts

_CHANNELS = (1, 3)
_MOST_CLASSES = 100_000
_TRAIN = (("x_train", "y_train"), ("x", "y"), ("images", "labels"))


def read_npz(path: Path, *, test_only: bool = False) -> Parts:
    """x_train, y_train, x_test, y_test (and x_val, y_val), or x, y, or images, labels; optionally classes, layout."""
    arrays = _load(path)
    train = next((keys for keys in _TRAIN if keys[0] in arrays and keys[1] in arrays), None)
    if test_only:
        return _test_parts(path, arrays, train)
    if train is None:
        raise UserError(f"{path} has {', '.join(arrays) or 'nothing'}; it needs x_train and y_train, or x and y")
    splits = {keys: _split(path, arrays, *keys) for keys in (train, ("x_test", "y_test"), ("x_val", "y_val"))}
    found = [split for split in splits.values() if split is not None]
    classes, numbered = _classes(path, arrays, [split.labels for split in found])
    return Parts(classes, found[0], splits["x_test", "y_test"], splits["x_val", "y_val"], numbered=numbered)


def _test_parts(path: Path, arrays: dict[str, np.ndarray], train: tuple[str, str] | None) -> Parts:
    """x_test, y_test, or all images there are."""
    tested = "x_test" in arrays or "y_test" in arrays
    keys = ("x_test", "y_test") if tested else train
    if keys is None:
        raise UserError(f"{path} has {', '.join(arrays) or 'nothing'}; it needs x_test and y_test, or x and y")
    if keys[0] == "x_train":
        warnings.warn(f"{path}: no x_test, so all images of x_train are used", DataWarning, stacklevel=5)
    split = _split(path, arrays, *keys)
    assert split is not None
    others = [_labels(path, y, arrays[y]) for _, y in (*_TRAIN, ("x_val", "y_val")) if y in arrays and y != keys[1]]
    classes, numbered = _classes(path, arrays, [split.labels, *others])
    return Parts(classes, None, split, numbered=numbered, whole=not tested)


def _classes(path: Path, arrays: dict[str, np.ndarray], labels: Sequence[Tensor]) -> tuple[tuple[str, ...], bool]:
    """The names of the classes, and whether they are only numbers."""
    if "classes" in arrays:
        return tuple(str(name) for name in arrays["classes"].ravel()), False
    top = max((int(part.max()) for part in labels if len(part)), default=-1)
    if top >= _MOST_CLASSES:
        raise UserError(f"{path} has a label {top}; number the classes from 0")
    return tuple(str(n) for n in range(top + 1)), True


def read_images(path: Path) -> tuple[Tensor, Tensor | None]:
    """Images [N, C, H, W] and their labels, if any: x_train, x or images, with y_train, y or labels."""
    arrays = _load(path)
    keys = next((keys for keys in _TRAIN if keys[0] in arrays), None)
    if keys is None:
        raise UserError(f"{path} has {', '.join(arrays) or 'nothing'}; it needs x, and y unless a network labels it")
    if keys[1] in arrays:
        split = _split(path, arrays, *keys)
        assert split is not None
        return split.images, split.labels
    layout = str(arrays["layout"]).upper() if "layout" in arrays else None
    return _images(path, keys[0], arrays[keys[0]], layout), None


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise UserError(f"{path} is one array, not an .npz file; save one with numpy.savez")
        with file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; an .npz file is needed") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read ({reason}); save plain arrays with numpy.savez") from None


def _split(path: Path, arrays: dict[str, np.ndarray], x: str, y: str) -> ArraySplit | None:
    if (x in arrays) != (y in arrays):
        raise UserError(f"{path} has only one of {x} and {y}; it needs both or neither")
    if x not in arrays:
        return None
    layout = str(arrays["layout"]).upper() if "layout" in arrays else None
    images, labels = _images(path, x, arrays[x], layout), _labels(path, y, arrays[y])
    if len(images) != len(labels):
        raise UserError(f"{path} has {len(images)} images in {x} but {len(labels)} labels in {y}")
    return ArraySplit(images, labels)


def _labels(path: Path, key: str, array: np.ndarray) -> Tensor:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"{path}: {key} is {list(array.shape)} in {array.dtype}; labels are [N] integers counted from 0"
        )
    return torch.from_numpy(array.astype(np.int64))


def _images(path: Path, key: str, array: np.ndarray, layout: str | None) -> Tensor:
    array = _channels_first(path, key, array, layout)
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    if array.dtype.kind != "f":
        raise UserError(f"{path}: {key} is {array.dtype}; images are uint8, or floats in [0, 1]")
    pixels = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN fails too
        low, high = np.min(array), np.max(array)
        raise UserError(f"{path}: {key} has values from {low:g} to {high:g}; float images are finite and in [0, 1]")
    whole = (pixels * 255).round().to(torch.uint8)
    return whole if torch.equal(whole.float().div(255), pixels) else pixels


def _channels_first(path: Path, key: str, array: np.ndarray, layout: str | None) -> np.ndarray:
    if layout not in (None, "NCHW", "NHWC"):
        raise UserError(f"{path}: layout is {layout!r}; it is NCHW or NHWC")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim != 4:
        raise UserError(f"{path}: {key} is {list(array.shape)}; images are [N, H, W], [N, C, H, W] or [N, H, W, C]")
    first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
    if layout is None and first == last:
        raise UserError(
            f"{path}: {key} is {list(array.shape)}, which axis is the channels is not clear; "
            f'add an entry layout="NCHW" or layout="NHWC" to the file'
        )
    return array if layout == "NCHW" or (layout is None and first) else array.transpose(0, 3, 1, 2)
