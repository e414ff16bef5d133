"""How strong each corruption is at severities 1 to 5, as published with CIFAR-10-C for images of 32 × 32.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019.
Lengths are in pixels of an image of 32 × 32; the corruptions scale them with the size of the image.
"""

from collections.abc import Mapping, Sequence
from typing import Any

BASE = 32
"""The side in pixels that all lengths are given for."""

COMMON: Mapping[str, Sequence[Any]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # standard deviation
    "shot_noise": (500, 250, 100, 75, 50),  # photons of a white pixel
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # share of the values
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, σ of the disk's edge
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),  # σ, displacement, times
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),  # radius, σ
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),  # end, step
    "snow": (  # mean and deviation of the flakes, their size, threshold, radius and σ of their way, share of the image
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),  # weight of the image, of the ice
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # weight, how fast details fade
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),  # added to the value
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),  # factor around the mean
    "elastic_transform": (  # strength and σ of the displacements, largest move of the corners, in sides of the image
        (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03),
    ),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),  # side in sides of the image
    "jpeg_compression": (80, 65, 58, 50, 40),  # quality
}  # fmt: skip
"""The fifteen corruptions that results are averaged over."""

EXTRA: Mapping[str, Sequence[Any]] = {
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),  # standard deviation in parts of the value
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),  # σ
    "spatter": (  # mean and deviation of the liquid, σ, threshold, strength (σ of mud), whether it is mud
        (0.62, 0.1, 0.7, 0.7, 0.5, False), (0.65, 0.1, 0.8, 0.7, 0.5, False), (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True), (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # factor and summand of the saturation
}  # fmt: skip
"""Four more, for which no average is published."""

SEVERITIES = {**COMMON, **EXTRA}
LEVELS = (1, 2, 3, 4, 5)
