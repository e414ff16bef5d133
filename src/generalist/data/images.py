"""Pixels from files and from one size to another."""

from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from generalist.core.errors import UserError

Box = tuple[int, int, int, int]
SMALL = 64  # up to this side an image is used whole; above it the usual border of 224 in 256 is cut away
_CHUNK, _PIXELS = 512, 2**26  # images, and values, that are resized at once


_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)


def open_image(path: str) -> Image.Image:
    """The file as a decoded RGB image; of an animation the first picture."""
    try:
        with Image.open(path) as file:
            return _rgb(file)
    except _DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot read the image {path} ({reason}); replace or remove the file") from None


def _rgb(file: Image.Image) -> Image.Image:
    if file.mode.startswith("I;16"):  # which Pillow would cut off at 255 instead of scaling it
        return Image.fromarray((np.asarray(file) // 257).astype(np.uint8)).convert("RGB")
    if file.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, whose white is not known; save it with 8 or 16")
    # a palette with transparency goes through RGBA, as Pillow asks for with a warning
    clear = file.mode == "P" and "transparency" in file.info
    return (file.convert("RGBA") if clear else file).convert("RGB")


def looks_whole(path: str) -> bool:
    """Whether the file is an image as far as can be told without decoding it."""
    try:
        with Image.open(path) as file:
            file.verify()
    except _DAMAGE:
        return False
    return True


_GRAY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")
_GRAYISH = 8  # how far apart red, green and blue may be after JPEG's rounding


class ImageFacts(NamedTuple):
    """What a file holds: its sides in pixels, and whether it is gray, by its mode or by its pixels."""

    height: int
    width: int
    gray: bool


def examine(path: str) -> ImageFacts | None:
    """The facts of an image file, decoded to its end; None where it cannot be read."""
    try:
        with Image.open(path) as file:
            gray = file.mode in _GRAY_MODES
            image = _rgb(file)
    except _DAMAGE:
        return None
    if not gray:
        pixels = np.asarray(image.resize((16, 16))).astype(np.int16)
        gray = int((pixels.max(2) - pixels.min(2)).max()) <= _GRAYISH
    return ImageFacts(image.height, image.width, gray)


def to_tensor(image: Image.Image) -> Tensor:
    """uint8 [C, H, W]."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()


def open_in(path: str, channels: int) -> Image.Image:
    """The file as a decoded image in colour (3) or gray (1)."""
    return open_image(path) if channels == 3 else open_image(path).convert("L")


def decode(path: str, *, size: int, channels: int = 3) -> Tensor:
    """The file as evaluation sees it: shorter side resized, centre kept; uint8 [channels, size, size]."""
    image = open_in(path, channels)
    height, width, top, left = frame(image.height, image.width, size, border=size > SMALL)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return to_tensor(image.crop((left, top, left + size, top + size)))


def crop(image: Image.Image, box: Box, *, size: int) -> Tensor:
    """(top, left, height, width) of the image, resized to uint8 [C, size, size]."""
    top, left, height, width = box
    region = (left, top, left + width, top + height)
    return to_tensor(image.resize((size, size), Image.Resampling.BILINEAR, box=region))


def frame(height: int, width: int, size: int, *, border: bool) -> Box:
    """(height, width) to resize to, and (top, left) of the centre of size × size in it."""
    short = round(size * 256 / 224) if border else size
    scale = short / min(height, width)
    height, width = max(short, round(height * scale)), max(short, round(width * scale))
    return height, width, (height - size) // 2, (width - size) // 2


_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow converts


def in_channels(images: Tensor, *, channels: int) -> Tensor:
    """Images [N, C, H, W] in colour (gray ones three times over) or gray (the luma of red, green and blue)."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1).contiguous()
    if images.shape[1] != 3 or channels != 1:
        raise UserError(f"images of {images.shape[1]} channels cannot be made {channels}; only gray and colour can")
    out = images.new_empty(len(images), 1, *images.shape[2:])
    for start in range(0, len(images), _CHUNK):
        part = torch.einsum("nchw,c->nhw", images[start : start + _CHUNK].float(), torch.tensor(_LUMA))
        part = part.clamp(0, 1) if images.is_floating_point() else part.round()
        out[start : start + _CHUNK, 0] = part.to(images.dtype)
    return out


def resize(images: Tensor, *, size: int) -> Tensor:
    """Images [N, C, H, W] with the shorter side resized to `size` and the centre kept, in their own type."""
    if images.shape[2:] == (size, size):
        return images
    height, width, top, left = frame(images.shape[2], images.shape[3], size, border=False)
    out = images.new_empty(len(images), images.shape[1], size, size)
    chunk = max(1, min(_CHUNK, _PIXELS // (images.shape[1] * height * width)))
    for start in range(0, len(images), chunk):
        part = images[start : start + chunk].float()
        part = F.interpolate(part, (height, width), mode="bilinear", antialias=True, align_corners=False)
        part = part[:, :, top : top + size, left : left + size]
        top_value = 1.0 if images.is_floating_point() else 255.0
        part = part if images.is_floating_point() else part.round()
        out[start : start + chunk] = part.clamp(0, top_value).to(images.dtype)
    return out
