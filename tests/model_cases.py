"""What the tests of the models share."""

import torch
from torch import nn

from generalist.core.rng import generator
from generalist.models import MODELS, Classifier, build_model

PATTERNS = ["wrn-10-1", "wrn-16-2", "wrn-14-2"]
NAMES = [*MODELS.names(), *PATTERNS]


def narrow(name: str, *, width: int = 4, seed: int = 0, **options: object) -> Classifier:
    """A model small enough for a test."""
    return build_model(name, classes=5, width=width, seed=seed, **options)  # type: ignore[arg-type]


@torch.no_grad()
def disturb_(model: nn.Module, seed: int = 0) -> None:
    """BatchNorms as training might leave them."""
    source = generator("disturb", seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.3, generator=source)
            module.running_var.uniform_(0.5, 2.0, generator=source)
            if module.affine:
                module.weight.uniform_(0.5, 1.5, generator=source)
                module.bias.normal_(0.0, 0.3, generator=source)


def images(batch: int = 2, *, channels: int = 3, size: int = 32) -> torch.Tensor:
    return torch.rand(batch, channels, size, size, generator=generator("images"))
