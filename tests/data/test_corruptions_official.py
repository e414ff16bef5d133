"""CIFAR-10-C and CIFAR-10-P as files: what is there is used, what is missing is said, what is wrong is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from generalist import UserError
from generalist.data import ArraySplit
from generalist.data.corruptions import official
from generalist.data.corruptions.official import read_official

COUNT = 6


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> ArraySplit:
    """The official test split, made small."""
    monkeypatch.setattr(official, "COUNT", COUNT)
    return ArraySplit(torch.zeros(COUNT, 3, 32, 32, dtype=torch.uint8), torch.arange(COUNT) % 3)


def write_c(root: Path, *names: str, labels: np.ndarray | None = None) -> Path:
    """Every image of severity s is of the value 40 s + its index."""
    folder = root / "CIFAR-10-C"
    folder.mkdir(parents=True)
    values = np.array([40 * severity + index for severity in range(1, 6) for index in range(COUNT)], np.uint8)
    for name in names:
        np.save(folder / f"{name}.npy", np.broadcast_to(values[:, None, None, None], (5 * COUNT, 32, 32, 3)))
    np.save(folder / "labels.npy", np.tile(np.arange(COUNT) % 3, 5).astype(np.uint8) if labels is None else labels)
    return folder


def test_severities_and_frames_are_found(tmp_path: Path, split: ArraySplit) -> None:
    write_c(tmp_path, "fog", "saturate")
    moving = tmp_path / "CIFAR-10-P"
    moving.mkdir()
    frames = np.arange(COUNT * 31, dtype=np.uint8).reshape(COUNT, 31, 1, 1, 1)
    np.save(moving / "rotate.npy", np.broadcast_to(frames, (COUNT, 31, 32, 32, 3)))
    found = read_official("cifar10", tmp_path, split)
    ids = torch.tensor([4, 1])
    assert list(found.corruptions) == ["fog", "saturate"]
    assert (found.corrupted("fog", 3, ids)[:, 0, 0, 0] * 255).round().tolist() == [124, 121]
    assert found.corrupted("fog", 3, ids).shape == (2, 3, 32, 32)
    assert (found.frame("rotate", 30, ids)[:, 2, 5, 5] * 255).round().tolist() == [4 * 31 + 30, 61]
    still, moved = found.notes
    assert "CIFAR-10-C lacks gaussian_noise, shot_noise" in still
    assert "saturate" not in still
    assert "CIFAR-10-P lacks gaussian_noise" in moved


def test_without_folders_nothing_is_official(tmp_path: Path, split: ArraySplit) -> None:
    assert not read_official("cifar10", tmp_path, split).corruptions
    assert not read_official("digits", tmp_path, split).notes


def test_other_images_than_the_whole_test_split_are_not_paired(tmp_path: Path, split: ArraySplit) -> None:
    write_c(tmp_path, "fog")
    found = read_official("cifar10", tmp_path, split.take(torch.arange(3)))
    assert not found.corruptions
    assert "CIFAR-10-C left out: they are about the 6 test images of cifar10 at 32 × 32" in found.notes[0]


def test_wrong_files_are_refused(tmp_path: Path, split: ArraySplit) -> None:
    folder = write_c(tmp_path, "fog")
    np.save(folder / "snow.npy", np.zeros((5 * COUNT, 32, 32), np.uint8))
    with pytest.raises(UserError, match=r"snow.npy is uint8 \[30, 32, 32\], should be uint8 \[30, 32, 32, 3\]"):
        read_official("cifar10", tmp_path, split)
    (folder / "snow.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"snow.npy is truncated or no .npy file"):
        read_official("cifar10", tmp_path, split)
    (folder / "snow.npy").unlink()
    whole = (folder / "fog.npy").read_bytes()
    (folder / "fog.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"fog.npy is truncated"):
        read_official("cifar10", tmp_path, split)
    (folder / "fog.npy").unlink()
    with pytest.raises(UserError, match=r"CIFAR-10-C has none of gaussian_noise, .*fetch them or move it away"):
        read_official("cifar10", tmp_path, split)
    (folder / "labels.npy").unlink()
    with pytest.raises(UserError, match=r"has no labels.npy"):
        read_official("cifar10", tmp_path, split)


def test_labels_of_other_images_are_refused(tmp_path: Path, split: ArraySplit) -> None:
    write_c(tmp_path, "fog", labels=np.zeros(5 * COUNT, np.uint8))
    with pytest.raises(UserError, match=r"labels.npy is not the labels of the test split, five times"):
        read_official("cifar10", tmp_path, split)
