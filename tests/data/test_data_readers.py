"""Each dataset, read from tiny files laid out as its publisher lays them out."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat
from tiny_data import pickled, random_images, write_idx

from generalist.core.errors import UserError
from generalist.data import ArraySplit, load_dataset
from generalist.data.names import CIFAR10, CIFAR100


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("mnist", "")]
)
def test_idx(tmp_path: Path, mnist_files: Callable, name: str, folder: str, packed: bool) -> None:
    arrays = mnist_files(tmp_path / folder, packed=packed)
    data = load_dataset(name, root=tmp_path, validation=0)
    assert data.shape == (1, 28, 28)
    assert (len(data.train), len(data.test), len(data.classes)) == (40, 20, 10)
    assert np.array_equal(data.test.read(torch.arange(20))[:, 0], arrays["t10k-images-idx3-ubyte"])
    assert np.array_equal(data.train.labels, arrays["train-labels-idx1-ubyte"])


def test_idx_truncated(tmp_path: Path, mnist_files: Callable) -> None:
    mnist_files(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte is truncated") as error:
        load_dataset("mnist", root=tmp_path)
    one_line(error)


def test_idx_packed_and_cut(tmp_path: Path, mnist_files: Callable) -> None:
    mnist_files(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        load_dataset("mnist", root=tmp_path)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", bytes([0, 0, 8, 1]) + bytes(8)])
def test_idx_of_something_else(tmp_path: Path, mnist_files: Callable, content: bytes) -> None:
    mnist_files(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(UserError, match="is not an IDX file"):
        load_dataset("mnist", root=tmp_path)


def test_idx_counts_differ(tmp_path: Path, mnist_files: Callable) -> None:
    mnist_files(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(19, np.uint8))
    with pytest.raises(UserError, match=r"20 images but .* 19 labels"):
        load_dataset("mnist", root=tmp_path)


def test_label_outside_the_classes(tmp_path: Path, mnist_files: Callable) -> None:
    mnist_files(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.full(20, 10, np.uint8))
    with pytest.raises(UserError, match="label 10 in the test split is outside the 10 classes"):
        load_dataset("mnist", root=tmp_path)


def test_empty_split(tmp_path: Path, mnist_files: Callable) -> None:
    mnist_files(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(0, np.uint8))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((0, 28, 28), np.uint8))
    with pytest.raises(UserError, match="the test split is empty"):
        load_dataset("mnist", root=tmp_path)


def test_missing_file_is_named(tmp_path: Path, mnist_files: Callable) -> None:
    mnist_files(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError) as error:
        load_dataset("mnist", root=tmp_path)
    message = one_line(error)
    assert "no t10k-labels-idx1-ubyte in" in message
    assert str(tmp_path / "MNIST/raw") in message
    assert "--download" in message


def cifar(fine: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return random_images(20, 3, 32, 32, seed=seed), np.arange(20) % fine


def write_cifar(root: Path, name: str, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """The test split that was written."""
    parts = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"] if name == "cifar10" else ["train", "test"]
    for seed, part in enumerate(parts):
        images, labels = cifar(len(CIFAR10) if name == "cifar10" else len(CIFAR100), seed=seed)
        rows = images.reshape(len(images), -1)
        if layout == "binary":
            folder = root / ("cifar-10-batches-bin" if name == "cifar10" else "cifar-100-binary")
            coarse = [] if name == "cifar10" else [np.full((20, 1), 7)]
            folder.mkdir(parents=True, exist_ok=True)
            np.concatenate([*coarse, labels[:, None], rows], 1).astype(np.uint8).tofile(folder / f"{part}.bin")
        else:
            folder = root / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")
            key = b"labels" if name == "cifar10" else b"fine_labels"
            pickled(folder / part, {b"data": rows, key: labels.tolist(), b"coarse_labels": [7] * 20})
    return images, labels


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize(("name", "train"), [("cifar10", 100), ("cifar100", 20)])
@pytest.mark.filterwarnings("ignore:.*no training image")
def test_cifar(tmp_path: Path, name: str, train: int, layout: str) -> None:
    images, labels = write_cifar(tmp_path, name, layout)
    # the hundred classes have at most one image each here, of which none can be spared
    data = load_dataset(name, root=tmp_path, validation=0)
    assert data.shape == (3, 32, 32)
    assert (len(data.train), len(data.test)) == (train, 20)
    assert data.classes[:2] == (("airplane", "automobile") if name == "cifar10" else ("apple", "aquarium_fish"))
    found = data.test.labels.argsort(stable=True)  # a split in the order of its classes comes mixed
    back = labels.argsort(kind="stable")
    assert torch.equal(data.test.labels[found], torch.from_numpy(labels[back]))
    key = images.reshape(20, -1).astype(np.int64).sum(1)
    assert sorted(key) == sorted(data.test.read(torch.arange(20)).flatten(1).long().sum(1).tolist())
    sample = data.test.read(torch.arange(20))[data.test.labels == 3]
    assert any(np.array_equal(sample[0], image) for image in images[labels == 3])


def test_cifar_pickled_by_python_3(tmp_path: Path) -> None:
    """Protocol 0 writes bytes through _codecs.encode, protocol 4 names numpy._core."""
    write_cifar(tmp_path, "cifar10", "python")
    images, labels = cifar(10, seed=9)
    for file, protocol in (("data_batch_1", 0), ("test_batch", 4)):
        content = {b"data": images.reshape(20, -1), b"labels": labels.tolist()}
        pickled(tmp_path / "cifar-10-batches-py" / file, content, protocol=protocol)
    data = load_dataset("cifar10", root=tmp_path, validation=0)
    assert np.array_equal(data.test.read(torch.arange(20)), images)


def test_cifar_binary_truncated(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar10", "binary")
    path = tmp_path / "cifar-10-batches-bin/data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"data_batch_3.bin is truncated"):
        load_dataset("cifar10", root=tmp_path)


def test_cifar_pickle_truncated(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar100", "python")
    path = tmp_path / "cifar-100-python/test"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match="is truncated or corrupt") as error:
        load_dataset("cifar100", root=tmp_path)
    assert str(path) in one_line(error)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 3}, "4 images but 3 labels"),
        ({b"data": np.zeros((4, 100), np.uint8), b"labels": [0] * 4}, "uint8 rows of 3072"),
        ({b"data": "text", b"labels": [0] * 4}, "uint8 rows of 3072"),
        ({b"labels": [0] * 4}, "truncated or corrupt"),
    ],
)
def test_cifar_pickle_of_something_else(tmp_path: Path, content: dict, complaint: str) -> None:
    write_cifar(tmp_path, "cifar10", "python")
    pickled(tmp_path / "cifar-10-batches-py/test_batch", content)
    with pytest.raises(UserError, match=complaint):
        load_dataset("cifar10", root=tmp_path)


class Runs:
    """Runs a command when it is unpickled by an ordinary unpickler."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar10", "python")
    mark = tmp_path / "was-run"
    path = tmp_path / "cifar-10-batches-py/data_batch_2"
    path.write_bytes(pickle.dumps({b"data": Runs(f"touch {mark}")}))
    with pytest.raises(UserError) as error:
        load_dataset("cifar10", root=tmp_path)
    assert str(path) in one_line(error)
    assert ".system" in str(error.value)
    assert not mark.exists()
    pickle.loads(path.read_bytes())  # shows that the file was dangerous
    assert mark.exists()


def write_svhn(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = random_images(32, 32, 3, 30), np.arange(30) * 7 % 10 + 1
    for file in ("train_32x32.mat", "test_32x32.mat"):
        savemat(folder / file, {"X": images, "y": labels[:, None].astype(np.uint8)})
    return images, labels


@pytest.mark.parametrize("folder", ["svhn", ""])
def test_svhn(tmp_path: Path, folder: str) -> None:
    images, labels = write_svhn(tmp_path / folder)
    data = load_dataset("svhn", root=tmp_path, validation=0)
    assert np.array_equal(data.test.labels, np.where(labels == 10, 0, labels))
    assert np.array_equal(data.test.read(torch.tensor([4]))[0], images[..., 4].transpose(2, 0, 1))


def test_svhn_corrupt(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"test_32x32.mat is truncated or corrupt"):
        load_dataset("svhn", root=tmp_path)


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    theirs, data = load_digits(), load_dataset("digits", validation=0)
    pictures = torch.from_numpy((theirs.images * 255 / 16).round()).to(torch.uint8)
    wanted = sorted((image.tobytes(), int(label)) for image, label in zip(pictures.numpy(), theirs.target, strict=True))
    found = [
        (image.numpy().tobytes(), int(label))
        for split in (data.train, data.test)
        for image, label in zip(split.images, split.labels, strict=True)
    ]
    assert sorted(found) == wanted


def test_digits() -> None:
    data = load_dataset("digits")
    assert data.shape == (1, 8, 8)
    assert len(data.train) + len(data.validation) + len(data.test) == 1797
    assert isinstance(data.train, ArraySplit)
    assert data.train.images.unique().tolist() == [round(v * 255 / 16) for v in range(17)]
    shares = (
        data.test.labels.bincount() / torch.cat([s.labels for s in (data.train, data.validation, data.test)]).bincount()
    )
    assert (shares - 0.2).abs().max() < 0.01


def test_unknown_name_suggests() -> None:
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        load_dataset("cifar-10")
