"""What the corruptions share: 8-bit pixels, filters, zooms and shifts of batches [B, C, H, W]."""

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor

from generalist.core.errors import UserError
from generalist.data.corruptions.severities import BASE

SMALLEST = 8
"""The shortest side in pixels."""
_ROUNDING = 1e-3  # of a level: what float32 may lose of a whole number


def checked(images: Tensor) -> Tensor:
    """The images in 8-bit levels on the CPU, if they can be corrupted."""
    if images.dim() != 4 or min(images.shape[-2:]) < SMALLEST:
        shape = list(images.shape)
        raise UserError(f"images to corrupt are [B, C, H, W] of at least {SMALLEST} × {SMALLEST} pixels, got {shape}")
    return to_levels(images.detach().cpu())


def enlarged(x: Tensor) -> tuple[Tensor, int]:
    """Each pixel as a square of so many times itself, that the shorter side is about 32 or more; and how many."""
    times = max(1, round(BASE / min(x.shape[-2:])))
    return x.repeat_interleave(times, 2).repeat_interleave(times, 3), times


def reduced(x: Tensor, times: int) -> Tensor:
    """Back to the size before, in 8-bit levels."""
    x = x.clamp(0, 1)
    return cut_to_levels(F.avg_pool2d(x, times) if times > 1 else x)


def to_levels(images: Tensor) -> Tensor:
    """float32 in [0, 1] on the grid of 8-bit pixels, from uint8 or from floats in [0, 1]."""
    levels = images.float() if images.dtype == torch.uint8 else (images.float() * 255).round()
    return levels.contiguous() / 255


def cut_to_levels(x: Tensor) -> Tensor:
    """The next lower 8-bit pixel, in [0, 1]: published images were cut off, not rounded."""
    return (x.clamp(0, 1) * 255 + _ROUNDING).floor() / 255


def smooth(x: Tensor, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> Tensor:
    """A Gaussian filter over the last two dimensions."""
    if sigma <= 0:
        return x
    rows = ndimage.gaussian_filter1d(x.numpy(), sigma, axis=-2, mode=mode, truncate=truncate)
    return torch.from_numpy(ndimage.gaussian_filter1d(rows, sigma, axis=-1, mode=mode, truncate=truncate))


def filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Correlation of every channel with a kernel [K, K]; beyond the border pixels are mirrored at its centres."""
    channels, pad = x.shape[1], kernel.shape[-1] // 2
    weight = kernel.to(x).expand(channels, 1, -1, -1)
    return F.conv2d(F.pad(x, (pad,) * 4, mode="reflect"), weight, groups=channels)


def zoomed(x: Tensor, factor: float) -> Tensor:
    """The centre, enlarged by linear interpolation to the size of the image."""
    return _zoom_matrix(x.shape[-2], factor) @ x @ _zoom_matrix(x.shape[-1], factor).T


@lru_cache(maxsize=512)
def _zoom_matrix(side: int, factor: float) -> Tensor:
    """[side, side]: each new row as a mean of two old ones; the ends of the cut fall on the ends of the enlargement."""
    part = math.ceil(side / factor)
    long = round(part * factor)
    first, trim = (side - part) // 2, (long - side) // 2
    at = np.linspace(0, part - 1, long)[trim : trim + side]
    low = np.minimum(at.astype(int), part - 1)
    high = np.minimum(low + 1, part - 1)
    matrix, rows = np.zeros((side, side), np.float32), np.arange(side)
    np.add.at(matrix, (rows, first + low), 1 - (at - low))
    np.add.at(matrix, (rows, first + high), at - low)
    return torch.from_numpy(matrix)


def streaked(x: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """Motion blur along `angle` [B] in degrees: half a Gaussian of `sigma` on one side, 2 · radius + 1 pixels long."""
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    down, right = torch.deg2rad(angle.double()).sin(), torch.deg2rad(angle.double()).cos()
    blurred, total = torch.zeros_like(x), 0.0
    for step in range(2 * round(radius) + 1):
        weight = math.exp(-(step**2) / (2 * sigma**2))
        dy, dx = (torch.ceil(step * part - 0.5).long()[:, None, None] for part in (down, right))
        y, z = (rows + dy).clamp(0, height - 1), (columns + dx).clamp(0, width - 1)
        blurred += weight * taken(x, y.expand(-1, -1, width), z.expand(-1, height, -1))
        total += weight
    return blurred / total


def taken(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Each pixel from the given row and column of its image, [B, H, W] each."""
    where = (rows * x.shape[-1] + columns).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, where).view_as(x)


def sampled(x: Tensor, rows: Tensor, columns: Tensor, *, beyond: str, at_centres: bool = True) -> Tensor:
    """Linear interpolation at real rows and columns [B, H, W]; beyond the border `zeros` or `reflection`.

    A reflection is at the centres of the last pixels, or at their outer edges.
    """
    height, width = x.shape[-2:]
    if at_centres:
        place = (2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1)
    else:
        place = ((2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1)
    grid = torch.stack(place, dim=-1).to(x)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=beyond, align_corners=at_centres)


def gray(x: Tensor) -> Tensor:
    """Luminance [B, 1, H, W]; the mean of the channels where they are not red, green and blue."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)


def coloured(layer: Tensor, colour: tuple[float, float, float], like: Tensor) -> Tensor:
    """A layer [B, 1, H, W] in that colour, or in its luminance for images that are not RGB."""
    if like.shape[1] == 3:
        return layer * torch.tensor(colour)[:, None, None]
    return layer * (0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2])
