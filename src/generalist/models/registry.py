"""The table of models. Each entry is a function with keyword-only knobs that returns a network of normalised images."""

from collections.abc import Callable

from torch import nn

from generalist.core.registry import Registry

MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model",
    runtime=("classes", "channels", "size"),
    doc="""The networks by name: functions (*, classes, channels, size, …) → a torch module.

    Args:
        classes: How many logits the network returns per image.
        channels: Of the images [B, channels, size, size] it takes.
        size: Their side in pixels.

    Returns:
        The network, with random weights; images come to it normalised.

    Example:
        >>> import generalist
        >>> from torch import nn
        >>> @generalist.MODELS.register("linear")
        ... def linear(*, classes: int, channels: int, size: int, bias: bool = True) -> nn.Module:
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes, bias=bias))
        >>> generalist.build_model("linear", classes=10, channels=1, size=8, bias=False).spec.options
        {'bias': False}
    """,
)
