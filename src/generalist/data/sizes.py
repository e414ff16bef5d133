"""How large the named datasets are, for estimates that need none of their files."""

from typing import NamedTuple


class DataSize(NamedTuple):
    """Images of the train and test splits, their shape (C, H, W), and the number of classes."""

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int


SIZES = {
    "digits": DataSize(1438, 359, (1, 8, 8), 10),
    "mnist": DataSize(60_000, 10_000, (1, 28, 28), 10),
    "fashion-mnist": DataSize(60_000, 10_000, (1, 28, 28), 10),
    "cifar10": DataSize(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": DataSize(50_000, 10_000, (3, 32, 32), 100),
    "svhn": DataSize(73_257, 26_032, (3, 32, 32), 10),
    "imagenet": DataSize(1_281_167, 50_000, (3, 224, 224), 1000),
}
