"""Arrays in .npz files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_data import random_images

from generalist.core.errors import UserError
from generalist.data import ArraySplit, Dataset, DataWarning, load_dataset

LABELS = np.array([0, 1, 1, 0, 1, 0, 0, 1, 0, 1])


def load(tmp_path: Path, **arrays: Any) -> Dataset:
    np.savez(tmp_path / "data.npz", **arrays)
    return load_dataset("npz", root=tmp_path / "data.npz", validation=0)


def both(x: np.ndarray, y: np.ndarray = LABELS) -> dict[str, np.ndarray]:
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


@pytest.mark.parametrize(
    ("shape", "axes", "loaded"),
    [
        ((10, 6, 6), None, (1, 6, 6)),
        ((10, 3, 6, 5), None, (3, 6, 5)),
        ((10, 6, 5, 3), (0, 3, 1, 2), (3, 6, 5)),
        ((10, 6, 5, 1), (0, 3, 1, 2), (1, 6, 5)),
    ],
)
def test_layouts(tmp_path: Path, shape: tuple, axes: tuple | None, loaded: tuple) -> None:
    images = random_images(*shape)
    data = load(tmp_path, **both(images))
    wanted = images.transpose(axes) if axes else images
    assert data.shape == loaded
    assert np.array_equal(data.test.read(torch.arange(10)), wanted.reshape(10, *loaded))
    assert np.array_equal(data.train.labels, LABELS)


@pytest.mark.parametrize("shape", [(10, 3, 6, 3), (10, 1, 6, 1), (10, 4, 6, 6)])
def test_unclear_layout_asks(tmp_path: Path, shape: tuple) -> None:
    with pytest.raises(UserError, match="layout=") as error:
        load(tmp_path, **both(random_images(*shape)))
    assert "\n" not in str(error.value)
    assert load(tmp_path, **both(random_images(*shape)), layout="NCHW").shape == shape[1:]
    assert load(tmp_path, **both(random_images(*shape)), layout="NHWC").shape == (shape[3], shape[1], shape[2])
    with pytest.raises(UserError, match="NCHW or NHWC"):
        load(tmp_path, **both(random_images(*shape)), layout="CHWN")


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("images", "labels"), ("x_train", "y_train")])
def test_without_test_some_are_held_out(tmp_path: Path, x: str, y: str) -> None:
    with pytest.warns(DataWarning, match="2 of 10 images are held out"):
        data = load(tmp_path, **{x: random_images(10, 6, 6), y: LABELS})
    assert (len(data.train), len(data.test)) == (8, 2)
    assert data.test.labels.bincount().tolist() == [1, 1]


def test_whole_floats_become_bytes_and_others_stay(tmp_path: Path) -> None:
    bytes_ = random_images(10, 6, 6)
    whole = load(tmp_path, **both(bytes_.astype(np.float32) / 255)).train
    assert isinstance(whole, ArraySplit)
    assert whole.images.dtype == torch.uint8
    assert np.array_equal(whole.images[:, 0], bytes_)
    fine = np.random.default_rng(0).random((10, 6, 6))
    kept = load(tmp_path, **both(fine)).train
    assert isinstance(kept, ArraySplit)
    assert kept.images.dtype == torch.float32
    assert np.array_equal(kept.images[:, 0], fine.astype(np.float32))


def test_column_labels_and_class_names(tmp_path: Path) -> None:
    data = load(tmp_path, **both(random_images(10, 6, 6), LABELS[:, None]), classes=np.array(["no", "yes"]))
    assert data.classes == ("no", "yes")
    assert np.array_equal(data.train.labels, LABELS)


def bad_pixel(value: float) -> np.ndarray:
    images = np.full((10, 6, 6), 0.5)
    images[3, 2, 1] = value
    return images


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        (both(bad_pixel(1.5)), "values from 0.5 to 1.5"),
        (both(bad_pixel(-0.1)), "values from -0.1"),
        (both(bad_pixel(np.nan)), "finite"),
        (both(bad_pixel(np.inf)), "finite"),
        (both(np.zeros((10, 6, 6), np.int32)), "int32"),
        (both(np.zeros((10, 36), np.uint8)), r"\[10, 36\]"),
        (both(random_images(10, 6, 6), LABELS[:9]), "10 images in x_train but 9 labels"),
        (both(random_images(10, 6, 6), LABELS / 2), "labels are"),
        (both(random_images(10, 6, 6), LABELS - 1), "label -1"),
        (both(random_images(10, 6, 6), LABELS * 10**9), "number the classes from 0"),
        ({**both(random_images(10, 6, 6)), "classes": np.array(["only"])}, "label 1 in the train split is outside"),
        ({"x_train": random_images(10, 6, 6)}, "it needs x_train and y_train"),
        (
            {"x": random_images(10, 6, 6), "y": LABELS, "x_test": random_images(10, 6, 6)},
            "only one of x_test and y_test",
        ),
        (both(random_images(0, 6, 6), LABELS[:0]), "train split is empty"),
        ({**both(random_images(10, 6, 6)), "x_test": random_images(10, 7, 7)}, "one shape"),
        (both(np.array([{}] * 10, dtype=object)), "allow_pickle|Object arrays"),
    ],
)
def test_files_that_will_not_do(tmp_path: Path, arrays: dict, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        load(tmp_path, **arrays)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"hello"])
def test_corrupt_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        load_dataset("npz", root=path)


def test_a_single_array_is_not_a_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", LABELS)
    with pytest.raises(UserError, match=r"not an \.npz file"):
        load_dataset("npz", root=tmp_path / "data.npy")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        load_dataset("npz", root=tmp_path / "none.npz")
    with pytest.raises(UserError, match="needs a root"):
        load_dataset("npz")


def test_class_missing_from_train(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="no training image of 2, 3"):
        load(tmp_path, **{**both(random_images(10, 6, 6)), "y_test": LABELS * 4})
