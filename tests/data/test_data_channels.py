"""Gray and colour: files are read as either, arrays are converted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from generalist.core.errors import UserError
from generalist.data import Augment, FileSplit, batches, load_dataset, load_evaluation_images
from generalist.data.images import in_channels


def test_a_folder_is_read_in_gray_or_colour(image_folder: Callable[..., Path]) -> None:
    root = image_folder({"": {"a": 10, "b": 10}}, mode="L")
    gray, colour = (load_dataset("folder", root=root, size=8, channels=channels) for channels in (1, 3))
    assert (gray.shape, colour.shape) == ((1, 8, 8), (3, 8, 8))
    ids = torch.arange(len(gray.train))
    assert torch.equal(gray.train.read(ids), colour.train.read(ids)[:, :1])  # a gray file says the same either way
    assert load_dataset("folder", root=root, size=8).shape == (3, 8, 8)


def test_gray_files_are_read_from_disk_too(image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder({"": {"a": 10, "b": 10}}, side=(20, 14))
    held = load_dataset("folder", root=root, size=8, channels=1, validation=0).train
    monkeypatch.setattr("generalist.data.folder._MEMORY", 0)
    files = load_dataset("folder", root=root, size=8, channels=1, validation=0).train
    assert isinstance(files, FileSplit)
    assert torch.equal(files.read(torch.arange(16)), held.read(torch.arange(16)))
    assert next(batches(files, batch_size=4, seed=0, epoch=0, augment=Augment(flip=True))).x.shape == (4, 1, 8, 8)


def test_colour_becomes_gray_as_pillow_has_it() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    pillow = torch.stack([torch.from_numpy(np.array(Image.fromarray(one).convert("L"))) for one in pixels])
    assert (in_channels(images, channels=1)[:, 0].int() - pillow.int()).abs().max() <= 1
    floats = in_channels(images.float() / 255, channels=1)
    assert (floats[:, 0] * 255 - pillow).abs().max() <= 1


def test_gray_arrays_become_colour(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((20, 8, 8)).astype("f4"), y=np.arange(20) % 2)
    split = load_dataset("npz", root=tmp_path / "a.npz", channels=3).train
    images = split.read(torch.arange(len(split)))
    assert torch.equal(images[:, 0], images[:, 2])


def test_what_cannot_be_converted_is_said() -> None:
    with pytest.raises(UserError, match="cannot be made"):
        in_channels(torch.zeros(1, 4, 2, 2), channels=1)
    with pytest.raises(UserError, match="channels is 1"):
        load_dataset("digits", channels=2)


def test_evaluation_images_are_read_for_a_gray_model(image_folder: Callable[..., Path]) -> None:
    root = image_folder({"": {"a": 10, "b": 10}})
    assert load_evaluation_images(root, size=8, channels=1).split.shape == (1, 8, 8)


def test_a_larger_share_of_damaged_files_is_left_out_where_that_is_asked_for(image_folder: Callable[..., Path]) -> None:
    root = image_folder({"": {"a": 10, "b": 10}})
    (root / "a" / "0.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"0\.png.*\(1 of 20\).*data\.unreadable"):
        load_dataset("folder", root=root, size=8)
    with pytest.warns(UserWarning, match=r"1 of 20 images cannot be read and are left out: .*0\.png"):
        dataset = load_dataset("folder", root=root, size=8, unreadable=0.1)
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == 19
