"""Name → model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from generalist.core.errors import UserError, shown, unknown
from generalist.core.rng import derive
from generalist.models.foreign import callable_builder, given_builder, is_foreign
from generalist.models.given import is_given
from generalist.models.layout import prefers_channels_last
from generalist.models.normalize import normalization
from generalist.models.pretrained import package_builder, package_of
from generalist.models.registry import MODELS
from generalist.models.spec import Classifier, ModelSpec
from generalist.models.wide_resnet import FAMILIES, PATTERN, parse_wrn

MOST_PARAMETERS = 1_000_000_000


def build_model(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    size: int = 32,
    width: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
    **options: Any,
) -> Classifier:
    """A model with normalisation inside; its weights depend on `seed` alone.

    It is channels-last, unless it is somebody else's and a probe does not show that it works so.

    Args:
        name: A name of `MODELS`, wrn-<depth>-<factor>, timm/<name>, torchvision/<name>, or `module:callable`, a
            function or class of your own that returns a torch module and takes any of classes (or num_classes),
            channels and size.
        classes: How many logits per image.
        channels: Of the images.
        size: Their side in pixels.
        width: A knob of most shipped networks: the channels of their first stage.
        mean: What is subtracted from pixels in [0, 1], one number per channel; None is no normalisation.
        std: What they are divided by, one number per channel.
        seed: Of the initial weights.
        options: All other knobs of the network.

    Returns:
        The Classifier: images [B, channels, size, size] in [0, 1] → logits [B, classes].

    Example:
        >>> import generalist, torch
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> model(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    for field, value in (("classes", classes), ("channels", channels), ("size", size)):
        if value < 1:
            raise UserError(f"model {name!r} with {field}={value}; it must be 1 or more")
    normalize = normalization(mean, std, channels=channels)
    build, knobs = _resolve(name, options if width is None else {**options, "width": width})
    if _may_be_huge(name, knobs):
        with torch.device("meta"):  # shapes without memory
            parameters = sum(p.numel() for p in build(classes=classes, channels=channels, size=size).parameters())
        if parameters > MOST_PARAMETERS:
            raise UserError(
                f"model {shown(name)} with {shown(knobs)} has {parameters} parameters;"
                f" at most {MOST_PARAMETERS} are built"
            )
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also reseed every GPU.
        torch.default_generator.manual_seed(derive("init", seed))
        network = build(classes=classes, channels=channels, size=size)
    spec = ModelSpec(
        name=name,
        classes=classes,
        channels=channels,
        size=size,
        width=knobs.pop("width", None),
        mean=None if mean is None else tuple(map(float, mean)),
        std=None if std is None else tuple(map(float, std)),
        options=knobs,
    )
    x = torch.rand(2, channels, size, size, generator=torch.Generator())
    fast = not is_foreign(name) or prefers_channels_last(network, x)
    model = Classifier(normalize=normalize, network=network, spec=spec, contiguous=not fast)
    if fast:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing from torch's stubs
    return model


def _may_be_huge(name: str, knobs: Mapping[str, Any]) -> bool:
    """Whether one of our own networks is so far from its usual size that it is measured before it is made."""
    ours = not is_foreign(name)
    depth, factor = parse_wrn(name) or (0, 0)
    return ours and (knobs.get("width", 0) > 500 or depth > 200 or factor > 40)


def build_from_spec(spec: ModelSpec, *, seed: int = 0) -> Classifier:
    """The model that a spec describes, with fresh weights."""
    return build_model(
        spec.name,
        classes=spec.classes,
        channels=spec.channels,
        size=spec.size,
        width=spec.width,
        mean=spec.mean,
        std=spec.std,
        seed=seed,
        **spec.options,
    )


def _resolve(name: str, options: Mapping[str, Any]) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """The builder of a name, and its knobs completed with their defaults where they are known."""
    if package_of(name) is not None:
        return package_builder(name, options), dict(options)
    if is_given(name):
        return given_builder(name, options), dict(options)
    if ":" in name:
        return callable_builder(name, options), dict(options)
    if (wrn := parse_wrn(name)) is not None:
        knobs = FAMILIES.check(PATTERN, options)
        return partial(FAMILIES.get(PATTERN), depth=wrn[0], factor=wrn[1], **knobs), knobs
    if name not in MODELS.names():
        raise unknown("model", name, [*MODELS.names(), PATTERN, "timm/<name>", "torchvision/<name>", "module:callable"])
    knobs = MODELS.check(name, options)
    return partial(MODELS.get(name), **knobs), knobs
