"""Our corruptions beside those of imagecorruptions-imaug, on the same photographs of 32 × 32.

That package has the constants of ImageNet-C, so our functions are given these. Tolerances are in 8-bit levels.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from generalist.core.rng import ImageStreams, image_ids
from generalist.data.corruptions import blur, digital, noise, weather
from generalist.data.corruptions.pixels import cut_to_levels, streaked, to_levels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    imagecorruptions = pytest.importorskip(
        "imagecorruptions", reason="needs imagecorruptions-imaug, of the dev extra", exc_type=ImportError
    )

IMAGENET: dict[str, list[Any]] = {
    "gaussian_noise": [0.08, 0.12, 0.18, 0.26, 0.38],
    "shot_noise": [60, 25, 12, 5, 3],
    "impulse_noise": [0.03, 0.06, 0.09, 0.17, 0.27],
    "speckle_noise": [0.15, 0.2, 0.35, 0.45, 0.6],
    "gaussian_blur": [1, 2, 3, 4, 6],
    "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    "glass_blur": [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    "zoom_blur": [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
    "fog": [(1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)],
    "frost": [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
    "snow": [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
    "spatter": [
        (0.65, 0.3, 4, 0.69, 0.6, False), (0.65, 0.3, 3, 0.68, 0.6, False), (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True), (0.67, 0.4, 1, 0.65, 1.5, True),
    ],
    "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
    "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
    "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
    "jpeg_compression": [25, 18, 15, 10, 7],
    "pixelate": [0.6, 0.5, 0.4, 0.3, 0.25],
    "elastic_transform": [(0.005 * strength, 0.01, 0) for strength in (12.5, 16.25, 21.25, 25, 30)],
}  # fmt: skip
LARGEST = {
    "gaussian_blur": 1, "zoom_blur": 1, "contrast": 1, "brightness": 1, "saturate": 1, "jpeg_compression": 0,
    "pixelate": 0, "defocus_blur": 4,
}  # fmt: skip
"""Of the deterministic ones: the largest difference of any pixel. Their disk of radius 8 and more is cut off."""
SPREAD = {
    "gaussian_noise": 0.03, "shot_noise": 0.03, "impulse_noise": 0.03, "speckle_noise": 0.03, "elastic_transform": 0.08,
    "motion_blur": 0.12, "fog": 0.12, "snow": 0.15, "glass_blur": 0.18, "frost": 0.15, "spatter": 0.15,
}  # fmt: skip
"""Of the random ones: the relative difference of the root mean square of the change. Displacements above one pixel copy
what was copied already in theirs (glass); frost is drawn, not photographed."""


@pytest.fixture(scope="module")
def tiles() -> np.ndarray:
    """60 parts of the two photographs that come with scikit-learn, uint8 [60, 32, 32, 3]."""
    from sklearn.datasets import load_sample_images

    parts = [
        np.asarray(Image.fromarray(photo).crop((left, top, left + 128, top + 128)).resize((32, 32)))
        for photo in load_sample_images().images
        for top in range(0, 300, 60)
        for left in range(0, 480, 80)
    ]
    return np.stack(parts)


def ours(name: str) -> Callable[..., Tensor]:
    return next(getattr(module, name) for module in (noise, blur, weather, digital) if hasattr(module, name))


def both(tiles: np.ndarray, name: str, severity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The images, ours and theirs, in levels [N, 3, 32, 32]."""
    x = to_levels(torch.from_numpy(tiles).permute(0, 3, 1, 2))
    draw = ImageStreams(0, name, severity, ids=image_ids(x))
    mine = cut_to_levels(ours(name)(x, IMAGENET[name][severity - 1], draw, 1.0))
    np.random.seed(severity)  # which is where theirs draw from
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = [imagecorruptions.corrupt(tile, severity=severity, corruption_name=name) for tile in tiles]
    return (
        tiles.transpose(0, 3, 1, 2).astype(float),
        (mine * 255).round().numpy().astype(float),
        np.stack(theirs).transpose(0, 3, 1, 2).astype(float),
    )


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", LARGEST)
def test_deterministic_ones_agree_pixel_by_pixel(tiles: np.ndarray, name: str, severity: int) -> None:
    _, mine, theirs = both(tiles, name, severity)
    difference = np.abs(mine - theirs)
    assert difference.max() <= (1 if name == "defocus_blur" and severity < 4 else LARGEST[name])
    assert difference.mean() <= (1.3 if LARGEST[name] > 1 and severity > 3 else 0.15)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", SPREAD)
def test_random_ones_agree_in_distribution(tiles: np.ndarray, name: str, severity: int) -> None:
    before, mine, theirs = both(tiles, name, severity)
    if name == "spatter" and severity == 1:  # theirs turns images black on which no drop falls
        kept = theirs.max((1, 2, 3)) > 0
        before, mine, theirs = before[kept], mine[kept], theirs[kept]
        kept = (mine != before).any((1, 2, 3))
        assert kept.mean() > 0.5
    change, change_of_theirs = mine - before, theirs - before
    size, size_of_theirs = (np.sqrt((each**2).mean()) for each in (change, change_of_theirs))
    allowed = SPREAD[name] if (name, severity) != ("spatter", 1) else 0.25
    assert size == pytest.approx(size_of_theirs, rel=allowed)
    of_images = change_of_theirs.mean((1, 2, 3))
    slack = 4 * of_images.std() / np.sqrt(len(of_images)) + 0.1 * size_of_theirs
    assert abs(change.mean() - change_of_theirs.mean()) <= slack


@pytest.mark.parametrize(("radius", "sigma", "angle"), [(6, 1, 30.0), (9, 2.5, -44.0), (14, 12, -100.0)])
def test_motion_blur_along_a_given_angle_is_the_same(
    tiles: np.ndarray, radius: int, sigma: float, angle: float
) -> None:
    x = to_levels(torch.from_numpy(tiles).permute(0, 3, 1, 2))
    mine = 255 * streaked(x, radius, sigma, torch.full((len(x),), angle))
    theirs = [imagecorruptions.corruptions._motion_blur(tile, radius, sigma, angle) for tile in tiles]
    assert np.abs(mine.numpy() - np.stack(theirs).transpose(0, 3, 1, 2)).max() < 0.01
