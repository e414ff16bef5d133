"""Perturbation sequences like those of CIFAR-10-P: frames of an image that changes little by little.

The steps are those published with CIFAR-10-P (Hendrycks and Dietterich, ICLR 2019) for images of 32 × 32; lengths scale
with the size of the image.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from generalist.core.errors import unknown
from generalist.core.rng import ImageStreams, image_ids
from generalist.data.corruptions.noise import gaussian_noise, shot_noise, speckle_noise
from generalist.data.corruptions.pixels import checked, cut_to_levels, enlarged, reduced, sampled, smooth, streaked
from generalist.data.corruptions.severities import BASE
from generalist.data.corruptions.weather import brightness, flakes_of, snowed, watered

Frames = Callable[[Tensor, ImageStreams, float], Iterator[Tensor]]

LENGTHS: Mapping[str, int] = {
    "gaussian_noise": 31, "shot_noise": 31, "motion_blur": 21, "zoom_blur": 31, "snow": 31, "brightness": 31,
    "translate": 16, "rotate": 31, "tilt": 31, "scale": 31,
    "speckle_noise": 31, "gaussian_blur": 31, "spatter": 31, "shear": 31,
}  # fmt: skip
"""How many frames each sequence has; the last four are extra, no average is published for them."""
COMMON_SEQUENCES = tuple(LENGTHS)[:10]
NOISY = ("gaussian_noise", "shot_noise", "speckle_noise")
"""Their frames are drawn anew each, so they are compared with the first one; other frames with the one before."""


def perturbed(images: Tensor, name: str, *, seed: int = 0) -> Iterator[Tensor]:
    """The frames of a perturbation sequence; what is random depends on the image and the seed alone.

    Args:
        images: [B, C, H, W], uint8 or float in [0, 1], at least 8 pixels high and wide.
        name: A name of `LENGTHS`, such as `rotate`.
        seed: Of everything random.

    Returns:
        An iterator of frames, float32 [B, C, H, W] in [0, 1] each, in 8-bit levels, on the CPU.

    Example:
        >>> import generalist
        >>> from generalist.data.corruptions.sequences import perturbed
        >>> digits = generalist.load_dataset("digits").test.images[:4]
        >>> len(list(perturbed(digits, "rotate")))
        31
    """
    if name not in LENGTHS:
        raise unknown("perturbation", name, LENGTHS)
    x = checked(images)
    draw = ImageStreams(seed, "perturbation", name, ids=image_ids(x))
    if name in _POINTWISE:
        for frame in _POINTWISE[name](x, draw, 1.0):
            yield cut_to_levels(frame)
        return
    large, times = enlarged(x)
    for frame in _FRAMES[name](large, draw, min(large.shape[-2:]) / BASE):
        yield reduced(frame, times)


def _noisy(add: Callable[[Tensor, float, ImageStreams, float], Tensor], strength: float) -> Frames:
    """The image, then noise drawn anew for each frame."""

    def frames(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
        yield x
        for _ in range(30):
            yield add(x, strength, draw, scale)

    return frames


def _brightness(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for step in range(-15, 16):
        yield brightness(x, 0.015 * step, draw, scale)


def _motion_blur(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for step in range(-20, 1):
        yield streaked(x, 6 * scale, 1.8 * scale, torch.full((len(x),), 9.0 * step))


def _zoom_blur(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    total = torch.zeros_like(x)
    for step in range(31):
        total = total + _mapped(x, torch.eye(3) / torch.tensor([1 + 0.004 * step, 1 + 0.004 * step, 1]))
        yield total / (step + 1)


def _snow(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    flakes = flakes_of(x, 0.05, 0.3, 2 * scale, 0.5, draw)
    for step in range(31):
        angle = torch.full((len(x),), 4.0 * step - 150)
        yield snowed(x, streaked(flakes, 10 * scale, 2 * scale, angle), 0.85)


def _translate(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for step in range(-7, 9):
        yield _mapped(x, torch.tensor([[1, 0, -step * scale], [0, 1, 0], [0, 0, 1]]))


def _rotate(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for angle in torch.deg2rad(torch.arange(-15.0, 16)):
        sin, cos = float(angle.sin()), float(angle.cos())
        yield _mapped(x, torch.tensor([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]]))


def _tilt(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    """The image turned out of its plane around both axes, seen from as far as its diagonal is long."""
    far = float(x.shape[-1] ** 2 + x.shape[-2] ** 2) ** 0.5
    for angle in torch.deg2rad(0.75 * torch.arange(-15.0, 16)):
        sin, cos = float(angle.sin()), float(angle.cos())
        forth = torch.tensor([[far * cos, 0, 0], [-far * sin * sin, far * cos, 0], [sin * cos, sin, far]])
        yield _mapped(x, torch.linalg.inv(forth))


def _scale(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for step in range(31):
        factor = (70 + 2 * step) / 100
        yield _mapped(x, torch.eye(3) / torch.tensor([factor, factor, 1]))


def _shear(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for angle in torch.deg2rad(torch.arange(-15.0, 16)):
        yield _mapped(x, torch.tensor([[1, float(angle.tan()), 0], [0, 1, 0], [0, 0, 1]]))


def _gaussian_blur(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    for step in range(31):
        yield smooth(x, (0.3 + 0.015 * step) * scale, truncate=7)


def _spatter(x: Tensor, draw: ImageStreams, scale: float) -> Iterator[Tensor]:
    """Drops that run down."""
    liquid = smooth(0.6 + 0.265 * draw.normal(1, *x.shape[-2:]), 1.75 * scale)
    liquid = torch.where(liquid < 0.7, 0.0, liquid)
    for _ in range(31):
        yield watered(x, liquid, 0.6)
        above = torch.cat([torch.zeros_like(liquid[:, :, :1]), liquid[:, :, :-1]], dim=2)
        liquid = 0.2 * liquid + 0.8 * above


def _mapped(x: Tensor, back: Tensor) -> Tensor:
    """The image under a projective map about its centre; `back` [3, 3] takes (x, y, 1) of a new pixel to its origin."""
    height, width = x.shape[-2:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    middle = torch.tensor([(width - 1) / 2, (height - 1) / 2])
    places = torch.stack([columns - middle[0], rows - middle[1], torch.ones(height, width)], dim=-1) @ back.T.float()
    found = (places[..., :2] / places[..., 2:] + middle).expand(len(x), -1, -1, -1)
    return sampled(x, found[..., 1], found[..., 0], beyond="zeros", at_centres=False)


_POINTWISE: Mapping[str, Frames] = {
    "gaussian_noise": _noisy(gaussian_noise, 0.02),
    "shot_noise": _noisy(shot_noise, 700),
    "speckle_noise": _noisy(speckle_noise, 0.05),
    "brightness": _brightness,
}
_FRAMES: Mapping[str, Frames] = {
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "translate": _translate,
    "rotate": _rotate,
    "tilt": _tilt,
    "scale": _scale,
    "gaussian_blur": _gaussian_blur,
    "spatter": _spatter,
    "shear": _shear,
}
