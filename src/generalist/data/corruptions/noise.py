"""Noise: a value of its own for every pixel and channel."""

import math
from functools import lru_cache

import torch
from scipy.stats import poisson
from torch import Tensor

from generalist.core.rng import ImageStreams


def gaussian_noise(x: Tensor, deviation: float, draw: ImageStreams, scale: float) -> Tensor:
    return x + deviation * draw.normal(*x.shape[1:])


def shot_noise(x: Tensor, photons: float, draw: ImageStreams, scale: float) -> Tensor:
    """A Poisson number of photons, `photons` of them in the mean for a white pixel; x is on the 8-bit grid."""
    level = (x * 255).round().double()
    table, counts = _poisson_table(photons)
    place = torch.searchsorted(table, level + draw.uniform(*x.shape[1:]), right=True)
    return (place - counts * level).float() / photons


@lru_cache(maxsize=32)
def _poisson_table(photons: float) -> tuple[Tensor, int]:
    """The distribution functions of all 256 levels, one above the other: one search then inverts any of them."""
    counts = math.ceil(photons + 9 * math.sqrt(photons) + 20)
    levels = torch.arange(256, dtype=torch.float64)[:, None]
    below = torch.from_numpy(poisson.cdf(range(counts), (levels * photons / 255).numpy()))
    below[:, -1] = 1
    return (levels + below).flatten(), counts


def impulse_noise(x: Tensor, share: float, draw: ImageStreams, scale: float) -> Tensor:
    """Salt and pepper, half of each."""
    chance = draw.uniform(*x.shape[1:])
    return torch.where(chance < share, (chance < share / 2).float(), x)


def speckle_noise(x: Tensor, deviation: float, draw: ImageStreams, scale: float) -> Tensor:
    return x + x * deviation * draw.normal(*x.shape[1:])
