"""Random views of images. Every draw is from the image's own stream, so a view does not depend on the batch."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams

_TRIES = 10
_RATIO = 4 / 3
BOX_DRAWS = 2 * _TRIES + 2


@dataclass(frozen=True)
class Augment:
    """Pixels of zero padding for a random crop, mirroring, side of a cut-out square, area share of a resized crop.

    Files that are decoded as they are read always get a resized crop, of `scale` or 0.08 to 1, unless `crop` is set.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.crop < 0 or self.cutout < 0:
            raise UserError(f"crop and cutout are pixels and at least 0, got {self.crop} and {self.cutout}")
        if self.scale is not None:
            if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 1:
                raise UserError(f"scale is two shares of the area such as (0.08, 1), got {self.scale}")
            object.__setattr__(self, "scale", tuple(self.scale))


def augment(x: Tensor, source: ImageStreams, spec: Augment) -> Tensor:
    """A random view of each image [B, C, H, W], uint8 or float, in the same type and shape."""
    if spec.scale is not None:
        x = _resized_crop(x, random_boxes(source.uniform(BOX_DRAWS), *x.shape[2:], scale=spec.scale))
    if not (spec.crop or spec.flip or spec.cutout):
        return x
    height, width = x.shape[2:]
    rows = torch.arange(height, device=x.device).expand(len(x), -1)
    columns = torch.arange(width, device=x.device).expand(len(x), -1)
    if spec.crop:
        shift = _whole(source.uniform(2), 2 * spec.crop + 1) - spec.crop
        rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
    if spec.flip:
        columns = torch.where(source.uniform(1) < 0.5, columns.flip(1), columns)
    blank = ~_cross((rows >= 0) & (rows < height), (columns >= 0) & (columns < width))
    if spec.cutout:
        centre = source.uniform(2)
        blank |= _cross(_band(centre[:, :1], height, spec.cutout), _band(centre[:, 1:], width, spec.cutout))
    first = torch.arange(len(x), device=x.device)[:, None] * height
    place = (first + rows.clamp(0, height - 1))[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    pixels = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])  # a pixel's channels side by side: one short read each
    picked = pixels.index_select(0, place.flatten()).view(*place.shape, -1)
    return picked.masked_fill(blank[..., None], 0).permute(0, 3, 1, 2)


def random_boxes(draws: Tensor, height: int, width: int, *, scale: tuple[float, float]) -> Tensor:
    """(top, left, height, width) of a random part of each image, [B, 4]; ratio of the sides from 3/4 to 4/3.

    The sizes are found in double: rounding to whole pixels then hides how a device computes a root.
    """
    draws = draws.double()
    share, ratio = draws[:, :_TRIES], draws[:, _TRIES:-2]
    area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
    aspect = torch.exp((2 * ratio - 1) * math.log(_RATIO))
    tall, wide = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    first = (fits.cumsum(1) == 0).sum(1, keepdim=True)
    # where no try fits, the whole image as far as the ratio allows it
    tall = torch.cat([tall, torch.full_like(tall[:, :1], min(height, round(width * _RATIO)))], 1).gather(1, first)
    wide = torch.cat([wide, torch.full_like(wide[:, :1], min(width, round(height * _RATIO)))], 1).gather(1, first)
    top, left = (draws[:, -2:-1] * (height - tall + 1)).floor(), (draws[:, -1:] * (width - wide + 1)).floor()
    return torch.cat([top, left, tall, wide], 1).long()


def _whole(draws: Tensor, count: int) -> Tensor:
    """Uniform draws as whole numbers below count."""
    return (draws * count).long()


def _band(centre: Tensor, length: int, side: int) -> Tensor:
    """Which of `length` places are in the band of `side` around a centre drawn from all of them, [B, length]."""
    start = _whole(centre, length) - side // 2
    place = torch.arange(length, device=centre.device)
    return (place >= start) & (place < start + side)


def _cross(rows: Tensor, columns: Tensor) -> Tensor:
    return rows[:, :, None] & columns[:, None, :]


def _resized_crop(x: Tensor, boxes: Tensor) -> Tensor:
    """Each box resized to the whole image; a box is never larger, so plain bilinear sampling does not alias."""
    height, width = x.shape[2:]
    y, x_place = _sample(boxes[:, 0], boxes[:, 2], height), _sample(boxes[:, 1], boxes[:, 3], width)
    grid = torch.stack(torch.broadcast_tensors(x_place[:, None, :], y[:, :, None]), -1)
    pixels = F.grid_sample(x.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return pixels.clamp(0, 1) if x.is_floating_point() else pixels.round().clamp(0, 255).to(x.dtype)


def _sample(start: Tensor, extent: Tensor, length: int) -> Tensor:
    """Where to look along one axis, [B, length], in the −1 to 1 of grid_sample; never outside the box."""
    step = (torch.arange(length, device=start.device, dtype=torch.float32) + 0.5) / length
    start, extent = start[:, None].float(), extent[:, None].float()
    place = torch.minimum(torch.maximum(start + step * extent - 0.5, start), start + extent - 1)
    return (2 * place + 1) / length - 1
