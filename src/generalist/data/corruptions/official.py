"""The official CIFAR-10-C, CIFAR-100-C, CIFAR-10-P and CIFAR-100-P, as .npy files that the user has.

`CIFAR-10-C/<corruption>.npy` is uint8 [50000, 32, 32, 3], severity by severity, with `labels.npy` [50000];
`CIFAR-10-P/<perturbation>.npy` is uint8 [10000, frames, 32, 32, 3], in the order of the test split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from generalist.core.errors import UserError
from generalist.data.corruptions.sequences import COMMON_SEQUENCES, LENGTHS
from generalist.data.corruptions.severities import COMMON, LEVELS, SEVERITIES
from generalist.data.splits import Split

FOLDERS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
COUNT, SHAPE = 10_000, (32, 32, 3)


@dataclass(frozen=True)
class Official:
    """What of the official files is there, mapped into memory; `notes` say which are missing."""

    corruptions: Mapping[str, np.ndarray] = field(default_factory=dict)
    sequences: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def corrupted(self, name: str, severity: int, ids: Tensor) -> Tensor:
        """The images of these ids at a severity, float32 [B, 3, 32, 32] in [0, 1]."""
        return _unit(self.corruptions[name][(severity - 1) * COUNT + ids.numpy()])

    def frame(self, name: str, number: int, ids: Tensor) -> Tensor:
        """One frame of the sequences of these ids, float32 [B, 3, 32, 32] in [0, 1]."""
        return _unit(self.sequences[name][ids.numpy(), number])


def _unit(images: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 255


def read_official(data: str, root: Path, split: Split) -> Official:
    """The files of a dataset below root; nothing where there are none, or where `split` is not the whole test split."""
    if data not in FOLDERS:
        return Official()
    still, moving = (root / f"{FOLDERS[data]}-{kind}" for kind in "CP")
    if not still.is_dir() and not moving.is_dir():
        return Official()
    if len(split) != COUNT or split.shape != (3, 32, 32):
        there = " and ".join(str(folder) for folder in (still, moving) if folder.is_dir())
        return Official(notes=[f"{there} left out: they are about the {COUNT} test images of {data} at 32 × 32"])
    corruptions, notes = _read_corruptions(still, split.labels) if still.is_dir() else ({}, [])
    sequences, more = _read_sequences(moving) if moving.is_dir() else ({}, [])
    return Official(corruptions, sequences, [*notes, *more])


def _read_corruptions(folder: Path, labels: Tensor) -> tuple[dict[str, np.ndarray], list[str]]:
    expected = (len(LEVELS) * COUNT,)
    theirs = _read(folder / "labels.npy", expected)
    if theirs is None:
        raise UserError(f"{folder} has no labels.npy; restore it, or move the folder away to draw corruptions instead")
    if not np.array_equal(theirs.astype(np.int64), labels.repeat(len(LEVELS)).numpy()):
        raise UserError(f"{folder / 'labels.npy'} is not the labels of the test split, five times; fetch it again")
    found = {name: _read(folder / f"{name}.npy", (*expected, *SHAPE)) for name in SEVERITIES}
    return _present(folder, found, list(COMMON))


def _read_sequences(folder: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    found = {name: _read(folder / f"{name}.npy", (COUNT, frames, *SHAPE)) for name, frames in LENGTHS.items()}
    return _present(folder, found, list(COMMON_SEQUENCES))


def _present(
    folder: Path, found: Mapping[str, np.ndarray | None], common: Sequence[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The files that are there, and a note of those that are not."""
    there = {name: array for name, array in found.items() if array is not None}
    missing = [name for name, array in found.items() if array is None]
    if not set(there) & set(common):
        raise UserError(f"{folder} has none of {', '.join(common)} (.npy each); fetch them or move it away")
    return there, [f"{folder} lacks {', '.join(missing)}: the figures are of the others"] if missing else []


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array, not loaded but mapped; None where there is no file."""
    if not path.is_file():
        return None
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise UserError(f"{path} is truncated or no .npy file; fetch it again") from None
    images = len(shape) > 1
    if array.shape != shape or (array.dtype != np.uint8 if images else array.dtype.kind not in "iu"):
        what = "uint8" if images else "whole numbers"
        raise UserError(f"{path} is {array.dtype} {list(array.shape)}, should be {what} {list(shape)}; fetch it again")
    return array
