"""CIFAR-10 and CIFAR-100, in their binary and their Python layout."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from generalist.core.errors import UserError
from generalist.data.locate import Layout, locate
from generalist.data.splits import ArraySplit, Parts

_PIXELS = 3 * 32 * 32
_BATCHES = tuple(f"data_batch_{n}" for n in range(1, 6))


def read_cifar10(root: Path, classes: tuple[str, ...], *, test_only: bool = False) -> Parts:
    """Five training batches and one test batch."""
    files = ("test_batch",) if test_only else (*_BATCHES, "test_batch")
    binary = Layout(root / "cifar-10-batches-bin", [f"{file}.bin" for file in files])
    paths = locate("cifar10", [binary, Layout(root / "cifar-10-batches-py", files)])
    return _parts(paths, classes, label_bytes=1, key=b"labels")


def read_cifar100(root: Path, classes: tuple[str, ...], *, test_only: bool = False) -> Parts:
    """One training and one test file; the fine labels."""
    files = ("test",) if test_only else ("train", "test")
    binary = Layout(root / "cifar-100-binary", [f"{file}.bin" for file in files])
    paths = locate("cifar100", [binary, Layout(root / "cifar-100-python", files)])
    return _parts(paths, classes, label_bytes=2, key=b"fine_labels")


def _parts(paths: Sequence[Path], classes: tuple[str, ...], *, label_bytes: int, key: bytes) -> Parts:
    def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
        return _read_binary(path, label_bytes) if path.suffix == ".bin" else _read_pickle(path, key)

    *train, test = [read(path) for path in paths]
    return Parts(classes, _split(train) if train else None, _split([test]))


def _split(pieces: Sequence[tuple[np.ndarray, np.ndarray]]) -> ArraySplit:
    images = np.concatenate([pixels for pixels, _ in pieces]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([targets for _, targets in pieces]).astype(np.int64)
    return ArraySplit(torch.from_numpy(images), torch.from_numpy(labels))


def _read_binary(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of the labels, of which the last is the fine one, and the pixels."""
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); fetch it again") from None
    record = label_bytes + _PIXELS
    if len(data) % record:
        raise UserError(
            f"{path} is truncated or corrupt: {len(data)} bytes are not whole records of {record}; fetch it again"
        )
    rows = data.reshape(-1, record)
    return rows[:, label_bytes:], rows[:, label_bytes - 1]


def _read_pickle(path: Path, key: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, path).load()
        pixels, labels = content[b"data"], np.asarray(content[key])
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise UserError(
            f"{path} is truncated or corrupt ({type(error).__name__} in unpickling); fetch it again"
        ) from None
    good = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (_PIXELS,)
    if not good or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{path} does not have uint8 rows of {_PIXELS} pixels and integer labels; fetch it again")
    if len(pixels) != len(labels):
        raise UserError(f"{path} has {len(pixels)} images but {len(labels)} labels; fetch it again")
    return pixels, labels


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 pickles bytes in old protocols; no other codec is let in."""
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"codec {encoding!r}")
    return text.encode("latin1")


_reconstruct: Any = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can build arrays and plain containers, and call nothing else."""

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UserError(
                f"{self._path} asks for {module}.{name}, which CIFAR does not need; refused, fetch it again"
            )
        return _ALLOWED[module, name]
