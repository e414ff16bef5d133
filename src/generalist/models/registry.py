"""The table of models. Each entry is a function with keyword-only knobs that returns a network of normalised images."""

from collections.abc import Callable

from torch import nn

from generalist.core.registry import Registry

MODELS: Registry[Callable[..., nn.Module]] = Registry("model", runtime=("classes", "channels", "size"))
