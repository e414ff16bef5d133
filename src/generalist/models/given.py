"""Networks that somebody holds as objects. No card can build them again, so this process remembers them by name."""

import copy
import hashlib
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from generalist.core.errors import UserError
from generalist.core.user_code import find, first_line

PREFIX = "given/"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_REMEMBERED: dict[str, nn.Module] = {}


def is_given(name: str) -> bool:
    """Whether a model's name stands for an object that somebody held."""
    return name.startswith(PREFIX)


def architecture(network: nn.Module) -> str:
    """The digest of a network's modules as printed, and of the names, types and shapes of its tensors."""
    found = hashlib.sha256(_ADDRESS.sub("", repr(network)).encode())
    for name, tensor in network.state_dict().items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    return found.hexdigest()


def remember(network: nn.Module) -> str:
    """The name that copies of this network can be built by from now on, in this process."""
    name = f"{PREFIX}{type(network).__name__}-{architecture(network)[:8]}"
    try:
        _REMEMBERED[name] = copy.deepcopy(network).cpu()
    except Exception as error:
        raise UserError(f"a {type(network).__name__} that cannot be copied: {first_line(error)}") from error
    return name


def remember_as(name: str, given: nn.Module | Callable[[], nn.Module]) -> None:
    """Remember the network, or what the function returns, where it is the one that `name` stands for."""
    network = given if isinstance(given, nn.Module) else called(given)
    if remember(network) != name:
        raise UserError(
            f"the model has another architecture than {name.removeprefix(PREFIX)!r}, which was trained;"
            " give the same network"
        )


def called(function: Any) -> nn.Module:
    """The network that a user's function of no arguments returns."""
    if not callable(function):
        raise UserError(f"model is a torch.nn.Module or a function that returns one, got a {type(function).__name__}")
    try:
        network = function()
    except Exception as error:
        raise UserError(
            f"the function that makes the model raised {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(network, nn.Module):
        raise UserError(f"the function that makes the model returned a {type(network).__name__}, not a torch.nn.Module")
    return network


def remembered(name: str) -> nn.Module:
    """A copy of the network of that name."""
    if name not in _REMEMBERED:
        raise UserError(
            f"the network {name.removeprefix(PREFIX)!r} was given to generalist.fit as an object, which no file can"
            " build again; give it once more from Python: generalist.load(run, model=…)"
        )
    return copy.deepcopy(_REMEMBERED[name])


def reference(made_by: Any) -> str | None:
    """`module:name` of a class or function that can be imported under it from anywhere; else None."""
    module, path = getattr(made_by, "__module__", None), getattr(made_by, "__qualname__", "")
    if not module or module in ("__main__", "builtins") or "<" in path:
        return None
    try:
        return f"{module}:{path}" if find("model", f"{module}:{path}") is made_by else None
    except UserError:
        return None
