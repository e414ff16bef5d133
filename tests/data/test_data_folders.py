"""Folders of pictures."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_data import random_images

from generalist.core.errors import UserError
from generalist.data import ArraySplit, DataWarning, FileSplit, load_dataset, sequential_batches


def test_train_and_test(image_folder: Callable) -> None:
    root = image_folder({"train": {"dog": 10, "cat": 10}, "test": {"cat": 3, "dog": 4}})
    (root / "train" / "cat" / ".hidden").write_text("not a picture")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_dataset("folder", root=root)
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 8, 8)  # small and all alike: as they are
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 7)
    assert data.test.labels.bincount().tolist() == [3, 4]
    wanted = np.asarray(Image.open(root / "test/cat/0.png")).transpose(2, 0, 1)
    cats = data.test.read(torch.arange(7))[data.test.labels == 0]
    assert any(np.array_equal(cat, wanted) for cat in cats)


def test_val_is_test_when_there_is_no_test(image_folder: Callable) -> None:
    data = load_dataset("folder", root=image_folder({"train": {"a": 10, "b": 10}, "val": {"a": 3, "b": 2}}))
    assert (len(data.validation), len(data.test)) == (2, 5)


def test_val_is_validation_when_there_is_a_test(image_folder: Callable) -> None:
    root = image_folder({"train": {"a": 10, "b": 10}, "val": {"a": 4, "b": 4}, "test": {"a": 3, "b": 2}})
    data = load_dataset("folder", root=root)
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 8, 5)


@pytest.mark.parametrize("part", ["", "train"])
def test_without_test_a_fifth_is_held_out_and_said(image_folder: Callable, part: str) -> None:
    root = image_folder({part: {"a": 20, "b": 10}})
    with pytest.warns(DataWarning, match="6 of 30 images are held out"):
        data = load_dataset("folder", root=root)
    assert data.test.labels.bincount().tolist() == [4, 2]
    with pytest.warns(DataWarning):
        other = load_dataset("folder", root=root, seed=5)
    assert torch.equal(other.test.read(torch.arange(6)), data.test.read(torch.arange(6)))


def test_grey_becomes_rgb(image_folder: Callable) -> None:
    root = image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 1, "b": 1}}, mode="L")
    data = load_dataset("folder", root=root)
    assert data.channels == 3
    image = data.test.read(torch.tensor([0]))[0]
    assert torch.equal(image[0], image[1])
    assert torch.equal(image[0], image[2])


def test_large_pictures_are_framed_in_the_middle(tmp_path: Path) -> None:
    """A 256 × 512 picture shows its central 224 × 224 unchanged."""
    pixels = random_images(256, 512, 3)
    for part in ("train", "val"):
        for name in "ab":
            (tmp_path / part / name).mkdir(parents=True)
            for n in range(2):
                Image.fromarray(pixels).save(tmp_path / part / name / f"{n}.JPEG", format="PNG")
    data = load_dataset("imagenet", root=tmp_path)
    assert data.shape == (3, 224, 224)
    assert np.array_equal(data.test.read(torch.tensor([1]))[0], pixels[16:240, 144:368].transpose(2, 0, 1))


def test_size_is_as_asked(image_folder: Callable) -> None:
    root = image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 1, "b": 1}}, side=(10, 20))
    assert load_dataset("folder", root=root, size=6).shape == (3, 6, 6)
    assert load_dataset("folder", root=root).shape == (3, 224, 224)  # not square, so not used as they are


def test_many_pictures_stay_files(image_folder: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder({"train": {"a": 9, "b": 9}, "test": {"a": 3, "b": 3}})
    memory = load_dataset("folder", root=root)
    monkeypatch.setattr("generalist.data.folder._MEMORY", 100)
    files = load_dataset("folder", root=root)
    assert isinstance(memory.test, ArraySplit)
    assert isinstance(files.test, FileSplit)
    for a, b in zip(
        sequential_batches(memory.test, batch_size=4), sequential_batches(files.test, batch_size=4), strict=True
    ):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)


def damage(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:60])
    return str(path)


@pytest.mark.parametrize("memory", [100, 2**20])
def test_unreadable_pictures_are_listed_all_at_once(
    image_folder: Callable, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    root = image_folder({"train": {"a": 40, "b": 40}, "test": {"a": 20, "b": 20}})
    monkeypatch.setattr("generalist.data.folder._MEMORY", memory)
    bad = [damage(root / name) for name in ("test/b/1.png", "train/a/7.png")]
    with pytest.raises(UserError, match=r"cannot read the images .* \(2 of 120\)") as error:
        load_dataset("folder", root=root)
    assert ", ".join(bad) in str(error.value)
    assert "\n" not in str(error.value)
    for number in range(2, 16):
        damage(root / f"test/b/{number}.png")
    with pytest.raises(UserError, match=r"and 6 more \(16 of 120\)"):
        load_dataset("folder", root=root)


@pytest.mark.parametrize("memory", [100, 2**20])
def test_a_few_unreadable_pictures_are_left_out_and_named(
    image_folder: Callable, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    root = image_folder({"train": {"a": 50, "b": 50}, "test": {"a": 3, "b": 2}})
    monkeypatch.setattr("generalist.data.folder._MEMORY", memory)
    bad = damage(root / "test/b/1.png")
    with pytest.warns(DataWarning, match="1 of 105 images cannot be read and are left out") as warned:
        data = load_dataset("folder", root=root)
    assert bad in str(warned[0].message)
    assert data.test.labels.bincount().tolist() == [3, 1]
    assert len(data.train) + len(data.validation) == 100
    images = data.test.read(torch.arange(4))
    wanted = np.asarray(Image.open(root / "test/b/0.png")).transpose(2, 0, 1)
    assert np.array_equal(images[data.test.labels == 1][0], wanted)


@pytest.mark.parametrize("workers", [0, 1])
def test_damage_that_shows_only_when_decoded_is_named(
    image_folder: Callable, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    root = image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 2, "b": 2}}, side=(64, 64))
    bad = root / "test/b/1.jpg"
    Image.fromarray(random_images(64, 64, 3)).save(bad)
    bad.write_bytes(bad.read_bytes()[:-600])
    monkeypatch.setattr("generalist.data.folder._MEMORY", 100)
    lazy = load_dataset("folder", root=root)
    with pytest.raises(UserError, match="cannot read the image") as error:
        list(sequential_batches(lazy.test, batch_size=2, workers=workers))
    assert str(bad) in str(error.value)
    assert "\n" not in str(error.value)


def test_gif_and_tiff_are_read_and_other_files_are_named(image_folder: Callable) -> None:
    root = image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 0, "b": 1}})
    deep = np.full((8, 8), 40 * 257 + 3, dtype=np.uint16)
    for name in ("0.tiff", "1.TIF", "2.png"):
        Image.fromarray(deep).save(root / "test/a" / name)
    frames = [Image.fromarray(np.full((8, 8), level, dtype=np.uint8)) for level in (40, 200)]
    frames[0].save(root / "test/a/3.gif", save_all=True, append_images=frames[1:])
    for name in ("train/a/notes.txt", "train/b/more.TXT", "test/a/x.heic", "test/b/LICENCE"):
        (root / name).write_text("")
    with pytest.warns(DataWarning, match=r"not read.*: \.heic \(1\), \.txt \(2\), no ending \(1\)"):
        data = load_dataset("folder", root=root)
    assert data.test.labels.bincount().tolist() == [4, 1]
    assert (data.test.read(torch.arange(5))[data.test.labels == 0] == 40).all()


def test_pixels_of_unknown_white_are_refused(image_folder: Callable) -> None:
    root = image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 1, "b": 1}})
    Image.fromarray(np.full((8, 8), 0.5, dtype=np.float32)).save(root / "test/a/1.tiff")
    with pytest.raises(UserError, match=r"1\.tiff"):
        load_dataset("folder", root=root)


def test_class_missing_from_train_is_said(image_folder: Callable) -> None:
    root = image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 2, "b": 2, "zebra": 2}})
    with pytest.warns(DataWarning, match="no training image of zebra"):
        data = load_dataset("folder", root=root)
    assert data.classes == ("a", "b", "zebra")


def test_first_test_images_are_a_fair_sample(image_folder: Callable) -> None:
    """Files come class by class; the first ones evaluated must not all be of the first class."""
    data = load_dataset("folder", root=image_folder({"train": {"a": 4, "b": 4}, "test": {"a": 10, "b": 10}}))
    (batch,) = sequential_batches(data.test, batch_size=10, limit=10)
    assert batch.y.bincount().tolist() == [5, 5]


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"test": {"a": 2}, "val": {"a": 2}}, "no train folder"),
        ({"train": {"a": 0}, "test": {"a": 2}}, "has no images in class folders"),
        ({"train": {"a": 2}, "test": {"a": 0}}, "has no images in class folders"),
        ({"": {"a": 1, "b": 1}}, "leave none for a test split"),
    ],
)
def test_folders_that_will_not_do(image_folder: Callable, parts: dict, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load_dataset("folder", root=image_folder(parts))


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        load_dataset("folder", root=tmp_path / "nowhere")
    with pytest.raises(UserError, match="needs a root"):
        load_dataset("folder")


@pytest.mark.parametrize("download", [False, True])
def test_imagenet_is_got_by_hand(tmp_path: Path, download: bool) -> None:
    with pytest.raises(UserError, match="by hand"):
        load_dataset("imagenet", root=tmp_path, download=download)
