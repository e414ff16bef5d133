"""Where the datasets come from."""

from pathlib import Path
from typing import NamedTuple

from generalist.data.download import fetch, unpack


class Source(NamedTuple):
    """A file to fetch: its address up to its name, its name, its md5, the folder it goes to, whether to unpack it."""

    base: str
    file: str
    md5: str
    folder: str = ""
    archive: bool = False


def _idx(base: str, folder: str, sums: tuple[str, str, str, str]) -> list[Source]:
    files = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return [Source(base, f"{file}-ubyte.gz", md5, folder) for file, md5 in zip(files, sums, strict=True)]


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"

# addresses and sums as torchvision has them
SOURCES: dict[str, list[Source]] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "MNIST/raw",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "FashionMNIST/raw",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": [Source(_TORONTO, "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", archive=True)],
    "cifar100": [Source(_TORONTO, "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", archive=True)],
    "svhn": [
        Source(_STANFORD, "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "svhn"),
        Source(_STANFORD, "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "svhn"),
    ],
}


def obtain(name: str, root: Path, *, mirror: str | None = None) -> None:
    """Fetch the files of a dataset to below root; a mirror has them as <mirror>/<name>/<file>."""
    for source in SOURCES[name]:
        base = f"{mirror.rstrip('/')}/{name}" if mirror else source.base
        path = fetch(f"{base}/{source.file}", root / source.folder / source.file, md5=source.md5)
        if source.archive:
            unpack(path, root)
