"""Networks that are not ours: `module:callable`, `timm/<name>`, `torchvision/<name>`, and objects at hand."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from generalist.core.errors import UserError, unknown
from generalist.core.user_code import importable_here, raised
from generalist.models.given import is_given, remembered
from generalist.models.pretrained import package_of
from generalist.models.registry import MODELS

Builder = Callable[..., nn.Module]


def is_foreign(name: str) -> bool:
    """Whether a model's name is of one of these kinds."""
    return ":" in name or package_of(name) is not None or is_given(name)


def given_builder(name: str, options: Mapping[str, Any]) -> Builder:
    """The builder of copies of a network that this process remembers."""
    if options:
        raise UserError(f"the network {name!r} was given as it is and has no options, got {', '.join(options)}")
    return lambda *, classes, channels, size: remembered(name)


def callable_builder(name: str, options: Mapping[str, Any]) -> Builder:
    """The builder that `module:callable` names, given those of our arguments that its signature takes."""
    function = MODELS.get(name)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UserError(f"model {name!r}: its signature cannot be read; wrap it in a Python function") from None
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in takes and not open_ended:
            raise unknown(f"argument of model {name!r}", option, takes)

    def build(*, classes: int, channels: int, size: int) -> nn.Module:
        offered = {"classes": classes, "num_classes": classes, "channels": channels, "size": size}
        given = {key: value for key, value in offered.items() if key in takes}
        if open_ended and not {"classes", "num_classes"} & set(takes):
            given["num_classes"] = classes  # what builders that pass **kwargs on (torchvision's) expect
        try:
            with importable_here():
                network = function(**{**given, **options})
        except UserError:
            raise
        except Exception as error:
            raise raised("model", name, error) from error
        if not isinstance(network, nn.Module):
            raise UserError(f"model {name!r} returned a {type(network).__name__}; it must return a torch.nn.Module")
        return network

    return build
