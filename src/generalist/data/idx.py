"""The IDX files of MNIST and its kin."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from generalist.core.errors import UserError
from generalist.data.locate import Layout, locate
from generalist.data.splits import ArraySplit, Parts

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_mnist_like(name: str, root: Path, folder: str, classes: tuple[str, ...], *, test_only: bool = False) -> Parts:
    """The two splits in root/folder/raw, or in root itself."""
    files = _FILES[2:] if test_only else _FILES
    *train, images, labels = locate(name, [Layout(root / folder / "raw", files), Layout(root, files)])
    return Parts(classes, _split(*train) if train else None, _split(images, labels))


def _split(images: Path, labels: Path) -> ArraySplit:
    pixels, targets = read_idx(images, dims=3), read_idx(labels, dims=1)
    if len(pixels) != len(targets):
        raise UserError(f"{images} has {len(pixels)} images but {labels} has {len(targets)} labels; fetch both again")
    return ArraySplit(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(targets).long())


def read_idx(path: Path, *, dims: int) -> np.ndarray:
    """The uint8 array of an IDX file, packed or not."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); fetch it again") from None
    start = 4 + 4 * dims
    if data[:4] != bytes([0, 0, 8, dims]) or len(data) < start:
        raise UserError(f"{path} is not an IDX file of unsigned bytes with {dims} dimensions; fetch it again")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", count=dims, offset=4))
    if len(data) - start != math.prod(shape):
        raise UserError(
            f"{path} is truncated or corrupt: {len(data) - start} bytes where its header says {math.prod(shape)}; "
            f"fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
