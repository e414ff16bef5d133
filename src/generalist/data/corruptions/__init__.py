"""Common corruptions at five severities, for images of any size from 8 × 8 on, gray or in colour.

severities  how strong each is, as published      noise, blur, weather, digital   what each does
pixels      filters, zooms and shifts              sequences                       frames that change little by little
official    CIFAR-10-C and its like, from files
"""

from torch import Tensor

from generalist.core.errors import UserError, unknown
from generalist.core.rng import ImageStreams, image_ids
from generalist.data.corruptions import blur, digital, noise, weather
from generalist.data.corruptions.pixels import SMALLEST, checked, cut_to_levels, enlarged, reduced
from generalist.data.corruptions.severities import BASE, COMMON, EXTRA, LEVELS, SEVERITIES

__all__ = ["COMMON", "EXTRA", "LEVELS", "SMALLEST", "corrupt", "corruption_names"]

_FUNCTIONS = {
    name: next(getattr(module, name) for module in (noise, blur, weather, digital) if hasattr(module, name))
    for name in SEVERITIES
}
_WITHOUT_LENGTHS = {
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "brightness", "contrast", "saturate",
    "jpeg_compression", "pixelate",
}  # fmt: skip


def corruption_names(channels: int) -> list[str]:
    """Those that change images with so many channels: gray ones have nothing to saturate."""
    return [name for name in SEVERITIES if name != "saturate" or channels == 3]


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Images under one of the corruptions of CIFAR-10-C (Hendrycks and Dietterich, 2019).

    What is random is drawn from a stream of each image, named by its pixels and the seed: an image becomes the same in
    any batch and any order, and its draws are the same at all severities. Lengths scale with the shorter side. Images
    far smaller than 32 pixels are enlarged for what has lengths, corrupted and averaged back.

    Args:
        images: [B, C, H, W], uint8 or float in [0, 1], at least 8 pixels high and wide.
        name: A name of `COMMON` or `EXTRA`, such as `gaussian_noise`, `fog` or `jpeg_compression`.
        severity: 1 (weak) to 5 (strong).
        seed: Of everything random.

    Returns:
        float32 [B, C, H, W] in [0, 1], in 8-bit levels, on the CPU.

    Example:
        >>> import generalist
        >>> from generalist.data.corruptions import corrupt
        >>> digits = generalist.load_dataset("digits").test.images[:4]
        >>> corrupt(digits, "fog", 3).shape
        torch.Size([4, 1, 8, 8])
    """
    if name not in SEVERITIES:
        raise unknown("corruption", name, SEVERITIES)
    if severity not in LEVELS:
        raise UserError(f"severity must be 1 to 5, got {severity}")
    x = checked(images)
    draw = ImageStreams(seed, "corruption", name, ids=image_ids(x))
    strength = SEVERITIES[name][severity - 1]
    if name in _WITHOUT_LENGTHS:
        return cut_to_levels(_FUNCTIONS[name](x, strength, draw, 1.0))
    large, times = enlarged(x)
    return reduced(_FUNCTIONS[name](large, strength, draw, min(large.shape[-2:]) / BASE), times)
