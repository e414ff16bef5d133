"""Digital: contrast, elastic deformation, pixels, JPEG; and saturation."""

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from generalist.core.rng import ImageStreams
from generalist.data.corruptions.pixels import sampled, smooth


def contrast(x: Tensor, factor: float, draw: ImageStreams, scale: float) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def saturate(x: Tensor, strength: tuple[float, float], draw: ImageStreams, scale: float) -> Tensor:
    """The saturation of HSV times a factor, plus a summand. Gray pixels have the hue of red; gray images stay."""
    if x.shape[1] != 3:
        return x
    factor, more = strength
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    before = (value - low) / value.clamp_min(1e-6)
    after = (before * factor + more).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0])[:, None, None]
    return torch.where(before > 0, value - (value - x) * after / before.clamp_min(1e-6), value * (1 - after * red))


def pixelate(x: Tensor, side: float, draw: ImageStreams, scale: float) -> Tensor:
    """Fewer and larger pixels."""

    def coarse(image: Image.Image) -> Image.Image:
        small = (max(1, int(image.width * side)), max(1, int(image.height * side)))
        return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return _each(x, coarse)


def jpeg_compression(x: Tensor, quality: int, draw: ImageStreams, scale: float) -> Tensor:
    def compressed(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(x, compressed)


def _each(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Every image as Pillow has it, in RGB or gray; other channels one by one."""
    levels = (x * 255).round().to(torch.uint8)
    if x.shape[1] == 3:
        images = levels.permute(0, 2, 3, 1).numpy()
    else:
        images = levels.flatten(0, 1).numpy()
    changed = torch.from_numpy(np.stack([np.asarray(change(Image.fromarray(image))) for image in images]))
    return (changed.permute(0, 3, 1, 2) if x.shape[1] == 3 else changed.view_as(levels)).float() / 255


def elastic_transform(x: Tensor, strength: tuple[float, float, float], draw: ImageStreams, scale: float) -> Tensor:
    """An affine map that moves three points by chance, then smooth displacements of every pixel."""
    side = min(x.shape[-2:])
    displaced, sigma, moved = (side * part for part in strength)
    x = _affine(x, moved, draw)
    field = displaced * smooth(2 * draw.uniform(2, *x.shape[-2:]) - 1, sigma, mode="reflect", truncate=3)
    rows, columns = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
    return sampled(x, rows + field[:, 0], columns + field[:, 1], beyond="reflection", at_centres=False)


def _affine(x: Tensor, most: float, draw: ImageStreams) -> Tensor:
    """The map that takes three points around the centre to where they are, each moved by up to `most` pixels."""
    height, width = x.shape[-2:]
    row, column, third = height // 2, width // 2, min(height, width) // 3
    points = torch.tensor(
        [[column + third, row + third, 1], [column + third, row - third, 1], [column - third, row - third, 1]],
        dtype=torch.float64,
    )
    goals = points[:, :2] + most * (2 * draw.uniform(3, 2) - 1)
    ends = torch.cat([goals, torch.ones(len(x), 3, 1, dtype=torch.float64)], dim=2)
    back = torch.linalg.solve(ends, points[:, :2].expand(len(x), -1, -1))  # [B, 3, 2]: from the goals to the points
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([columns, rows, torch.ones_like(rows)], dim=-1).double().flatten(0, 1) @ back
    found = places.view(-1, height, width, 2)
    return sampled(x, found[..., 1], found[..., 0], beyond="reflection")
