"""Street View House Numbers, the cropped 32 × 32 ones."""

from pathlib import Path

import numpy as np
import torch

from generalist.core.errors import UserError
from generalist.data.locate import Layout, locate
from generalist.data.splits import ArraySplit, Parts


def read_svhn(root: Path, classes: tuple[str, ...], *, test_only: bool = False) -> Parts:
    """The two .mat files in root/svhn, or in root itself."""
    files = ("test_32x32.mat",) if test_only else ("train_32x32.mat", "test_32x32.mat")
    *train, test = locate("svhn", [Layout(root / "svhn", files), Layout(root, files)])
    return Parts(classes, _split(*train) if train else None, _split(test))


def _split(path: Path) -> ArraySplit:
    from scipy.io import loadmat  # slow to import, and for this alone

    try:
        content = loadmat(str(path), variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    except Exception as error:  # scipy fails in many ways on a damaged file
        raise UserError(f"{path} is truncated or corrupt ({type(error).__name__}); fetch it again") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
        raise UserError(
            f"{path}: X is {list(pixels.shape)} in {pixels.dtype}, not [H, W, 3, N] in uint8; fetch it again"
        )
    if pixels.shape[3] != len(labels):
        raise UserError(f"{path} has {pixels.shape[3]} images but {len(labels)} labels; fetch it again")
    labels[labels == 10] = 0  # the file counts the digits from 1 and calls zero ten
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return ArraySplit(torch.from_numpy(images), torch.from_numpy(labels))
