"""Tiny copies of the datasets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_data import Array, random_images, write_idx


@pytest.fixture
def mnist_files() -> Callable[..., dict[str, Array]]:
    """Writes the four files into a folder: 40 training and 20 test images."""

    def write(folder: Path, *, packed: bool = False) -> dict[str, Array]:
        arrays = {
            "train-images-idx3-ubyte": random_images(40, 28, 28),
            "train-labels-idx1-ubyte": np.arange(40, dtype=np.uint8) % 10,
            "t10k-images-idx3-ubyte": random_images(20, 28, 28, seed=1),
            "t10k-labels-idx1-ubyte": np.arange(20, dtype=np.uint8) % 10,
        }
        for name, array in arrays.items():
            write_idx(folder / name, array, packed=packed)
        return arrays

    return write


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes count random PNGs for each class of each part; a part "" is the top itself."""

    def write(parts: dict[str, dict[str, int]], *, side: tuple[int, int] = (8, 8), mode: str = "RGB") -> Path:
        root = tmp_path / "pictures"
        for seed, (part, classes) in enumerate(parts.items()):
            for offset, (name, count) in enumerate(classes.items()):
                folder = root / part / name
                folder.mkdir(parents=True)
                depth = (3,) if mode == "RGB" else ()
                for n, pixels in enumerate(random_images(count, *side, *depth, seed=100 * seed + offset)):
                    Image.fromarray(pixels).save(folder / f"{n}.png")
        return root

    return write
