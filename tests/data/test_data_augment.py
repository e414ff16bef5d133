"""What augmentation does to an image."""

import pytest
import torch
from torch.nn import functional as F

from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams
from generalist.data import Augment, augment
from generalist.data.augment import BOX_DRAWS, random_boxes

COUNT = 400


def images(*, size: int = 8, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Values from 1 up, so that a zero can only come from padding or a cut-out."""
    source = torch.Generator().manual_seed(0)
    x = torch.randint(1, 256, (COUNT, 3, size, size), dtype=torch.uint8, generator=source)
    return x if dtype == torch.uint8 else x.float() / 255


def streams(ids: torch.Tensor | None = None) -> ImageStreams:
    return ImageStreams("test", ids=torch.arange(COUNT) if ids is None else ids)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_is_a_window_of_the_padded_image(dtype: torch.dtype) -> None:
    x = images(dtype=dtype)
    out = augment(x, streams(), Augment(crop=2))
    padded = F.pad(x, (2, 2, 2, 2))
    windows = {(i, j): padded[:, :, i : i + 8, j : j + 8] for i in range(5) for j in range(5)}
    hits = torch.stack([(window == out).flatten(1).all(1) for window in windows.values()])
    assert out.dtype == dtype
    assert (hits.sum(0) == 1).all()
    assert (hits.sum(1) > 3).all()  # each of the 25 windows is expected 16 times


def test_flip_mirrors_half_of_the_images() -> None:
    x = images()
    out = augment(x, streams(), Augment(flip=True))
    mirrored = (out == x.flip(3)).flatten(1).all(1)
    assert ((out == x).flatten(1).all(1) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250


def test_cutout_blanks_one_square() -> None:
    x = images()
    out = augment(x, streams(), Augment(cutout=4))
    blank = (out == 0).all(1)
    assert torch.equal(torch.where(blank[:, None], x, out), x)  # all else is untouched
    areas = blank.flatten(1).sum(1)
    assert (areas >= 4).all()  # clipped at most by half at a corner
    assert areas.max() == 16
    for mask in blank[:20]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns[None, :])
    assert (blank.float().mean(0) > 0).all()  # it reaches every pixel


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_scale_shows_a_part_of_the_image(dtype: torch.dtype) -> None:
    ramp = torch.arange(16.0).expand(COUNT, 1, 16, 16) * 16
    x = ramp.to(dtype) if dtype == torch.uint8 else ramp / 255
    out = augment(x, streams(), Augment(scale=(0.1, 0.5))).float() * (1 if dtype == torch.uint8 else 255)
    shown = (out[:, 0, 0, -1] - out[:, 0, 0, 0]) / 16 + 1  # the width of the part, in pixels
    assert out.min() >= 0
    assert out.max() <= 240
    assert 3 <= shown.min() < 6
    assert 10 < shown.max() <= 14
    assert (out.diff(dim=3) >= 0).all()
    assert (out.diff(dim=2).abs() <= 1e-3).all()


def test_whole_scale_of_a_square_can_only_lose_a_little() -> None:
    boxes = random_boxes(streams().uniform(BOX_DRAWS), 40, 60, scale=(0.08, 1.0))
    top, left, height, width = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (top + height <= 40).all()
    assert (left + width <= 60).all()
    assert (height >= 1).all()
    ratio = width / height
    assert ratio.min() > 0.7
    assert ratio.max() < 1.42
    share = height * width / 2400
    assert 0.07 < share.min() < 0.15
    assert share.max() > 0.7


def test_a_very_long_image_gets_the_largest_part_the_ratio_allows() -> None:
    boxes = random_boxes(streams().uniform(BOX_DRAWS), 10, 1000, scale=(0.9, 1.0))
    assert (boxes[:, 2] == 10).all()
    assert (boxes[:, 3] == 13).all()
    assert boxes[:, 1].unique().numel() > 100


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_view_depends_on_the_image_and_not_on_the_batch(dtype: torch.dtype) -> None:
    x, spec = images(dtype=dtype), Augment(crop=2, flip=True, cutout=3, scale=(0.3, 1.0))
    full = augment(x, streams(), spec)
    chosen = torch.tensor([7, 399, 0, 120, 121])
    assert torch.equal(augment(x[chosen], streams(chosen), spec), full[chosen])


def test_nothing_asked_nothing_done() -> None:
    x = images()
    assert torch.equal(augment(x, streams(), Augment()), x)


@pytest.mark.parametrize(
    "options", [{"crop": -1}, {"cutout": -1}, {"scale": (0.0, 1.0)}, {"scale": (0.5, 0.1)}, {"scale": (0.5, 2.0)}]
)
def test_what_will_not_do(options: dict) -> None:
    with pytest.raises(UserError, match="got"):
        Augment(**options)
