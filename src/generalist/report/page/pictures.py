"""Images as PNG inside the page."""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

VIRIDIS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]) / 255


def picture(pixels: NDArray[Any]) -> str:
    """uint8 [C, H, W], gray or RGB, as a PNG in a data URI."""
    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels[:3], 0, 2))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def magnified(difference: NDArray[Any]) -> tuple[str, float]:
    """A perturbation [C, H, W] around mid-gray, magnified until it fills the range; and how many times."""
    largest = float(np.abs(difference).max())
    times = 0.5 / largest if largest > 0 else 1.0
    return picture(((0.5 + times * difference) * 255).round().clip(0, 255).astype(np.uint8)), times


def heated(pixels: NDArray[Any], heat: NDArray[Any]) -> str:
    """uint8 [C, H, W] with a map [H, W] in [0, 1] over it, from violet (0) to yellow (1)."""
    gray = pixels.astype(np.float64).mean(0) / 255
    place = heat.clip(0, 1) * (len(VIRIDIS) - 1)
    low = np.minimum(place.astype(int), len(VIRIDIS) - 2)
    share = (place - low)[..., None]
    colour = VIRIDIS[low] * (1 - share) + VIRIDIS[low + 1] * share
    mixed = 0.35 * gray[..., None] + 0.65 * colour
    return picture(np.moveaxis((mixed * 255).round().astype(np.uint8), 2, 0))
