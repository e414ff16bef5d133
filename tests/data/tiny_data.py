"""Writers of tiny files, as the publishers of the datasets write them."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np

Array = np.ndarray


def random_images(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_idx(path: Path, array: Array, *, packed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


def pickled(path: Path, content: dict[bytes, object], *, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
