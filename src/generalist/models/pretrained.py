"""Networks of timm and torchvision, and the weights that are published with them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from generalist.core.errors import UserError, unknown
from generalist.core.extras import import_extra
from generalist.core.rng import derive
from generalist.core.types import StateTree
from generalist.core.user_code import first_line

PRETRAINED = "pretrained"
"""What `init.from` calls the weights that are published with a network of timm or torchvision."""
PACKAGES = ("timm", "torchvision")


class Pretrained(NamedTuple):
    """Weights by the names of the network, and what it normalises images by."""

    state: StateTree
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def package_of(name: str) -> tuple[str, str] | None:
    """(`timm`, `resnet18`) of `timm/resnet18` or `timm:resnet18`; None for all other names."""
    for package in PACKAGES:
        for mark in "/:":
            if name.startswith(f"{package}{mark}"):
                return package, name[len(package) + 1 :]
    return None


def package_builder(name: str, options: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """The builder of a network of one of the packages, with random weights."""
    if PRETRAINED in options:
        raise UserError(
            f"model {name!r}: published weights are where training starts, not an option: init.from=pretrained"
        )
    make = _maker(name)

    def build(*, classes: int, channels: int, size: int) -> nn.Module:
        return make(False, classes=classes, channels=channels, options=dict(options))[0]

    return build


@lru_cache(maxsize=1)
def _published(name: str, classes: int, channels: int, seed: int, options: tuple[tuple[str, Any], ...]) -> Pretrained:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive("init", seed))  # of the last layer
        network, mean, std = _maker(name)(True, classes=classes, channels=channels, options=dict(options))
    if mean is not None and std is not None and channels != len(mean):
        mean, std = ((sum(values) / len(values),) * channels for values in (mean, std))
    return Pretrained(network.state_dict(), mean, std)


def published_weights(name: str, *, classes: int, channels: int, seed: int, options: Mapping[str, Any]) -> Pretrained:
    """The weights of `timm/<name>` or `torchvision/<name>`, with a new last layer for so many classes.

    The package downloads them, or has them in its cache.
    """
    if package_of(name) is None:
        raise UserError(
            f"model {name!r} has no published weights to start from; choose model.name=timm/<name> or"
            " torchvision/<name>, or give init.from a weights file or a run"
        )
    return _published(name, classes, channels, seed, tuple(sorted(options.items())))


Maker = Callable[..., tuple[nn.Module, Any, Any]]


def _maker(name: str) -> Maker:
    package, model = package_of(name) or ("", name)
    return _timm(name, model) if package == "timm" else _torchvision(name, model)


def _timm(name: str, model: str) -> Maker:
    timm = import_extra("timm", extra="timm", needed_by=f"model {name!r}")
    if model not in timm.list_models():
        raise unknown("timm model", model, timm.list_models())

    def make(pretrained: bool, *, classes: int, channels: int, options: dict[str, Any]) -> tuple[nn.Module, Any, Any]:
        def create() -> nn.Module:
            return timm.create_model(model, pretrained=pretrained, num_classes=classes, in_chans=channels, **options)

        network = _made(name, options, create)
        about = getattr(network, "pretrained_cfg", None) or {}
        return network, _numbers(about.get("mean")), _numbers(about.get("std"))

    return make


def _torchvision(name: str, model: str) -> Maker:
    try:
        from torchvision import models
    except Exception as error:
        raise UserError(
            f"model {name!r} needs torchvision ({first_line(error)}); install the build that goes with your torch"
        ) from None
    if model not in models.list_models():
        raise unknown("torchvision model", model, models.list_models())

    def make(pretrained: bool, *, classes: int, channels: int, options: dict[str, Any]) -> tuple[nn.Module, Any, Any]:
        if channels != 3:
            raise UserError(
                f"model {name!r} takes colour images, these have {channels} channel(s); set data.channels=3"
            )
        network = _made(name, options, lambda: models.get_model(model, weights=None, num_classes=classes, **options))
        if not pretrained:
            return network, None, None
        weights = models.get_model_weights(model).DEFAULT
        published = _made(name, options, lambda: models.get_model(model, weights=weights, **options)).state_dict()
        _take_over_(network, published, name)
        about = weights.transforms()
        return network, _numbers(getattr(about, "mean", None)), _numbers(getattr(about, "std", None))

    return make


def _take_over_(network: nn.Module, published: StateTree, name: str) -> None:
    """All tensors but those of the last layer, which knows other classes."""
    state = network.state_dict()
    fitting = {key: tensor for key, tensor in published.items() if key in state and state[key].shape == tensor.shape}
    fresh = {key.rpartition(".")[0] for key in state if key not in fitting}
    if len(fresh) > 2:  # a last layer, and perhaps an auxiliary one
        raise UserError(f"model {name!r}: its published weights do not fit it, in {', '.join(sorted(fresh)[:3])}, …")
    network.load_state_dict({**state, **fitting})


def _made(name: str, options: Mapping[str, Any], create: Callable[[], Any]) -> nn.Module:
    try:
        network: nn.Module = create()
    except Exception as error:
        given = f" with {dict(options)}" if options else ""
        raise UserError(f"model {name!r}{given}: {first_line(error)}") from error
    return network


def _numbers(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None or inspect.isroutine(values) else tuple(float(value) for value in values)
