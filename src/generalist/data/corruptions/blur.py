"""Blur: out of focus, frosted glass, motion, zoom, Gaussian."""

import numpy as np
import torch
from torch import Tensor

from generalist.core.rng import ImageStreams
from generalist.data.corruptions.pixels import cut_to_levels, filtered, smooth, streaked, taken, zoomed


def gaussian_blur(x: Tensor, sigma: float, draw: ImageStreams, scale: float) -> Tensor:
    return smooth(x, sigma * scale)


def defocus_blur(x: Tensor, strength: tuple[float, float], draw: ImageStreams, scale: float) -> Tensor:
    """The mean over a disk whose edge is smoothed."""
    radius, sigma = strength
    reach = (1 if radius <= 8 else 2) * max(1, round(scale))
    return filtered(x, _disk(radius * scale, sigma * scale, reach))


def _disk(radius: float, sigma: float, reach: int) -> Tensor:
    """[K, K], smoothed by a Gaussian that ends `reach` pixels from its centre."""
    place = torch.arange(-int(radius) - reach, int(radius) + reach + 1)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).float()
    taps = torch.exp(-(torch.arange(-reach, reach + 1) ** 2) / (2 * max(sigma, 1e-3) ** 2))
    edge = torch.outer(taps, taps)[None, None]
    return torch.conv2d((inside / inside.sum())[None, None], edge / edge.sum(), padding=reach)[0, 0]


def glass_blur(x: Tensor, strength: tuple[float, int, int], draw: ImageStreams, scale: float) -> Tensor:
    """Pixels are taken from near by, between two Gaussian blurs.

    The published images were made by a swap of pixels that copies instead, from above and from the left; so is this.
    """
    sigma, most, times = strength
    most = max(1, round(most * scale))
    x = cut_to_levels(smooth(x, sigma * scale))
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    inside = (rows > most) & (rows <= height - most) & (columns > most) & (columns <= width - most)
    for _ in range(times):
        move = (draw.uniform(2, height, width) * (2 * most)).long() - most
        move = torch.where(inside, move, 0)
        x = taken(x, (rows + move[:, 0]).clamp_max(height - 1), (columns + move[:, 1]).clamp_max(width - 1))
    return smooth(x, sigma * scale)


def motion_blur(x: Tensor, strength: tuple[float, float], draw: ImageStreams, scale: float) -> Tensor:
    """Along a line within 45° of the horizontal."""
    radius, sigma = strength
    return streaked(x, radius * scale, sigma * scale, 90 * draw.uniform() - 45)


def zoom_blur(x: Tensor, strength: tuple[float, float], draw: ImageStreams, scale: float) -> Tensor:
    """The mean of the image and of its enlargements, in steps up to an end."""
    end, step = strength
    factors = np.arange(1, end, step)
    total = x.clone()
    for factor in factors:
        total += zoomed(x, float(factor))
    return total / (len(factors) + 1)
