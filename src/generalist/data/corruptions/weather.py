"""Weather: snow, frost, fog, brightness; and spatter."""

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from generalist.core.rng import ImageStreams
from generalist.data.corruptions.pixels import coloured, filtered, gray, smooth, streaked, zoomed

ICE = (0.92, 1.0, 1.06)
"""The tint of frost."""
WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)


def brightness(x: Tensor, more: float, draw: ImageStreams, scale: float) -> Tensor:
    """Added to the value of HSV, which is the largest channel; hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    brighter = (value + more).clamp(0, 1)
    return torch.where(value > 0, x * brighter / value.clamp_min(1e-6), brighter)


def fog(x: Tensor, strength: tuple[float, float], draw: ImageStreams, scale: float) -> Tensor:
    """A fractal cloud is added; the brightest pixel stays as bright as it may be."""
    weight, decay = strength
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + weight * clouds(x, decay, draw)) * brightest / (brightest + weight)


def clouds(x: Tensor, decay: float, draw: ImageStreams) -> Tensor:
    """Diamond-square fractals [B, 1, H, W] from 0 to 1 (Fournier et al. 1982), closed to a torus.

    Each halving of the grid divides `wobble` by `decay`; a midpoint moves by up to its square.
    """
    height, width = x.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    field = torch.zeros(len(x), side, side)
    step, wobble = side, 100.0
    while step >= 2:
        half = step // 2

        def moved(total: Tensor, wobble: float = wobble) -> Tensor:
            return total / 4 + wobble**2 * (2 * draw.uniform(*total.shape[1:]) - 1)

        corners = field[:, ::step, ::step]
        beside = corners + corners.roll(-1, 2)
        centres = moved(beside + beside.roll(-1, 1))
        field[:, half::step, half::step] = centres
        field[:, ::step, half::step] = moved(beside + centres + centres.roll(1, 1))
        field[:, half::step, ::step] = moved(corners + corners.roll(-1, 1) + centres + centres.roll(1, 2))
        step, wobble = half, wobble / decay
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low).clamp_min(1e-9))[:, None, :height, :width]


def frost(x: Tensor, strength: tuple[float, float], draw: ImageStreams, scale: float) -> Tensor:
    """The image under a sheet of ice.

    The published images use photographs. Here the ice is drawn: needles in two directions on a cloud, as bright and
    as rough as the photographs are.
    """
    own, ice = strength
    one = (len(x), 1, 1, 1)
    level = 0.4 + 0.45 * draw.uniform().view(one)
    crystals = _standard(clouds(x, 1.8, draw))
    for _ in range(2):
        needles = draw.normal(1, *x.shape[-2:]).abs()
        crystals = crystals + 0.8 * _standard(streaked(needles, 3 * scale, 1.6 * scale, 180 * draw.uniform()))
    sheet = (level + 0.07 * _standard(crystals)).clamp(0, 1)
    return own * x + ice * coloured(sheet, ICE, x).clamp(0, 1)


def _standard(field: Tensor) -> Tensor:
    """Mean 0 and deviation 1 in each image."""
    return (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True).clamp_min(1e-6)


def snow(x: Tensor, strength: tuple[float, ...], draw: ImageStreams, scale: float) -> Tensor:
    """Flakes that leave a streak, and their mirror image, on an image that is whitened."""
    mean, deviation, size, threshold, radius, sigma, own = strength
    flakes = flakes_of(x, mean, deviation, size * scale, threshold, draw)
    fallen = streaked(flakes, radius * scale, sigma * scale, -135 + 90 * draw.uniform())
    return snowed(x, fallen, own)


def flakes_of(x: Tensor, mean: float, deviation: float, size: float, threshold: float, draw: ImageStreams) -> Tensor:
    """[B, 1, H, W]: normal noise, enlarged, of which what lies above the threshold stays."""
    field = zoomed(mean + deviation * draw.normal(1, *x.shape[-2:]), max(1.0, size))
    return torch.where(field < threshold, 0.0, field).clamp(0, 1)


def snowed(x: Tensor, fallen: Tensor, own: float) -> Tensor:
    whitened = own * x + (1 - own) * torch.maximum(x, 1.5 * gray(x) + 0.5)
    return whitened + fallen + fallen.rot90(2, (2, 3))


def spatter(
    x: Tensor, strength: tuple[float, float, float, float, float, bool], draw: ImageStreams, scale: float
) -> Tensor:
    """Drops of water that refract light, or mud that hides the image."""
    mean, deviation, sigma, threshold, amount, is_mud = strength
    liquid = smooth(mean + deviation * draw.normal(1, *x.shape[-2:]), sigma * scale)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if not is_mud:
        return watered(x, liquid, amount)
    cover = smooth((liquid > threshold).float(), amount * scale)
    cover = torch.where(cover < 0.8, 0.0, cover)
    return x * (1 - cover) + coloured(cover, MUD, x)


def watered(x: Tensor, liquid: Tensor, amount: float) -> Tensor:
    """Light is added inside the drops, in relief: by the distance from their edges, equalised and embossed."""
    levels = (liquid.clamp(0, 1) * 255).floor()
    relief = torch.from_numpy(np.stack([_relief(one.numpy()) for one in levels[:, 0]]))[:, None]
    emboss = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
    box = torch.full((3, 3), 1 / 9)
    shine = levels * filtered(filtered(relief, emboss).clamp(0, 255), box).round()
    shine = amount * shine / shine.amax((1, 2, 3), keepdim=True).clamp_min(1e-6)
    return x + coloured(shine, WATER, x)


def _relief(levels: np.ndarray) -> np.ndarray:
    """0 to 255, the same share of pixels at each level: how far a pixel is from the edge of a drop."""
    edges = _edges(levels)
    far = np.minimum(ndimage.distance_transform_edt(~edges), 20) if edges.any() else np.full(levels.shape, 20.0)
    far = ndimage.uniform_filter(far, 3, mode="mirror").astype(np.uint8)
    counts = np.bincount(far.ravel(), minlength=256)
    first = counts[counts.nonzero()[0][0]]
    share = (counts.cumsum() - first) / max(1, far.size - first)
    return (255 * share).round().astype(np.float32)[far]


def _edges(levels: np.ndarray, *, low: float = 50, high: float = 150) -> np.ndarray:
    """Canny's: ridges of the gradient, those above `high` and what is connected with them above `low`."""
    across, down = (ndimage.sobel(levels, axis=axis, mode="nearest") for axis in (1, 0))
    size = np.abs(across) + np.abs(down)
    framed = np.pad(size, 1)

    def beside(dy: int, dx: int) -> np.ndarray:
        return framed[1 + dy : framed.shape[0] - 1 + dy, 1 + dx : framed.shape[1] - 1 + dx]

    flat, steep = np.abs(down) < 0.4142 * np.abs(across), np.abs(down) > 2.4142 * np.abs(across)
    same = across * down > 0
    slanted = ~(flat | steep)
    ridge = np.zeros(levels.shape, bool)
    for where, (dy, dx) in (
        (flat, (0, 1)), (steep, (1, 0)), (slanted & same, (1, 1)), (slanted & ~same, (1, -1)),
    ):  # fmt: skip
        ridge |= where & (size > beside(-dy, -dx)) & (size >= beside(dy, dx))
    parts, _ = ndimage.label(ridge & (size > low), np.ones((3, 3)))
    strong = np.unique(parts[ridge & (size > high)])
    return np.isin(parts, strong[strong > 0])
