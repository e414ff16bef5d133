"""Parts of a network by the names of its modules: which tensors a pattern means, and how deep they lie."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from fractions import Fraction
from math import ceil

from torch import nn

from generalist.core.errors import UserError, cut, shown, unknown
from generalist.core.types import StateTree
from generalist.models.spec import Classifier

LONGEST_LIST = 300
EVERYTHING = "*"


@dataclass(frozen=True)
class Patterns:
    """Modules by name, with `*` and `?` as in a shell: `layer4` is that module, `layer4.*` all that is below it."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True)
class LastShare:
    """The last share of the network's depth, counted in layers that have a weight matrix or kernel."""

    share: Fraction

    def __str__(self) -> str:
        return f"the last {self.share}"


Selection = Patterns | LastShare
"""What a recipe gives as `trains`."""


def tensor_names(model: nn.Module) -> list[str]:
    """The tensors of a model's state: parameters and persistent buffers, in the order of its modules."""
    return list(model.state_dict(keep_vars=True))


def describe(model: nn.Module, tensors: Collection[str]) -> str:
    """The modules that these tensors are of, as one line that is never long."""
    return cut(", ".join(module_names(model, tensors)), LONGEST_LIST)


def module_names(model: nn.Module, tensors: Collection[str]) -> list[str]:
    """The modules that these tensors are of, each by the shortest name that covers no other tensor, in order.

    `select_tensors` of these names gives the tensors back.
    """
    chosen = {_own(model, tensor) for tensor in tensors}
    others = {
        part
        for name in tensor_names(model)
        if _own(model, name) not in chosen
        for part in _ancestors(_own(model, name))
    }
    order = [_own(model, name) for name in tensor_names(model)]
    return list(
        dict.fromkeys(
            next(part for part in _ancestors(own) if part not in others) for own in sorted(chosen, key=order.index)
        )
    )


def select_tensors(model: nn.Module, selection: Selection) -> frozenset[str]:
    """The names of the tensors that a selection of modules means.

    Args:
        model: Any module. Of a `Classifier` the patterns name the modules of its network.
        selection: `Patterns(("layer4.*", "fc"))`, or `LastShare(Fraction(1, 4))`.

    Returns:
        Names as in the model's `state_dict`. A pattern that matches nothing is an error.
    """
    names = tensor_names(model)
    if isinstance(selection, LastShare):
        depths = _layer_numbers(model)
        first = _layers(model) - max(1, ceil(selection.share * _layers(model)))
        return frozenset(name for name in names if depths[name] >= first)
    found = {pattern: {name for name in names if _matches(_own(model, name), pattern)} for pattern in selection.names}
    for pattern, tensors in found.items():
        if not tensors:
            raise _no_module(pattern, [_own(model, name) for name in names])
    return frozenset().union(*found.values())


def _no_module(pattern: str, tensors: Sequence[str]) -> UserError:
    """With the near-miss of any depth suggested; the list is that of the top level, as deep networks have thousands."""
    known = dict.fromkeys(part for name in tensors for part in _ancestors(name))
    if get_close_matches(pattern, known, n=1):
        return unknown("module", pattern, known)
    listed = ", ".join(dict.fromkeys(name.partition(".")[0] for name in tensors))
    return UserError(f"unknown module {shown(pattern)}; known: {cut(listed, LONGEST_LIST)}")


def replace_tensors_(model: nn.Module, shared: StateTree, names: Collection[str]) -> None:
    """Let the model use tensors that it shares with others. Those that are not in `shared` yet are put there."""
    for name in names:
        path, _, key = name.rpartition(".")
        module = model.get_submodule(path)
        if key in module._parameters:
            parameter = module.get_parameter(key)
            parameter.data = shared.setdefault(name, parameter.data)
        else:
            module._buffers[key] = shared.setdefault(name, module.get_buffer(key))


def depths(model: nn.Module) -> dict[str, float]:
    """How deep each tensor of the state lies: 0 for the first layer with a weight, 1 for the last."""
    last = max(1, _layers(model) - 1)
    return {name: min(1.0, number / last) for name, number in _layer_numbers(model).items()}


def depth_below(model: nn.Module, tensors: Collection[str]) -> float:
    """The share of the layers that a backward pass to these tensors goes through: 1 where the first layer is one."""
    numbers = _layer_numbers(model)
    return 1 - min((numbers[name] for name in tensors), default=0) / _layers(model)


def blocks(model: nn.Module) -> dict[str, list[str]]:
    """The tensors of each block of the network that has parameters, in order, by the first of its module names.

    A block is a top-level module, or a part of one that is nothing but a sequence (a stage of a ResNet). What has no
    weight matrix or kernel of its own, such as a BatchNorm, goes with the block before it.
    """
    state = model.state_dict(keep_vars=True)
    modules = dict(model.named_modules())
    names = [name.split(".") for name in state]
    top = 0  # the level at which there are several modules
    while len({tuple(parts[: top + 1]) for parts in names}) == 1 and all(len(parts) > top + 1 for parts in names):
        top += 1
    by_path: dict[str, list[str]] = {}
    for parts in names:
        depth = top + 1
        while isinstance(modules.get(".".join(parts[:depth])), nn.Sequential | nn.ModuleList):
            depth += 1
        by_path.setdefault(".".join(parts[:depth]), []).append(".".join(parts))
    groups: list[list[str]] = []
    for tensors in by_path.values():
        if groups and not any(state[name].dim() > 1 for name in tensors):
            groups[-1].extend(tensors)
        else:
            groups.append(tensors)
    parameters = {name for name, _ in model.named_parameters()}
    return {module_names(model, tensors)[0]: tensors for tensors in groups if parameters & set(tensors)}


def _own(model: nn.Module, tensor: str) -> str:
    return tensor.removeprefix("network.") if isinstance(model, Classifier) else tensor


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in _ancestors(name))


def _ancestors(name: str) -> Iterator[str]:
    """ "layer4.0.conv1.weight" → layer4, layer4.0, layer4.0.conv1 and the tensor itself."""
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _layers(model: nn.Module) -> int:
    return max(_layer_numbers(model).values(), default=0) + 1


def _layer_numbers(model: nn.Module) -> dict[str, int]:
    """Of each tensor: how many layers with a weight matrix or kernel come before its own, in order of registration."""
    numbers: dict[str, int] = {}
    state = model.state_dict(keep_vars=True)
    seen = -1
    last_module = None
    for name, tensor in state.items():
        module = name.rpartition(".")[0]
        if tensor.dim() > 1 and module != last_module:
            seen, last_module = seen + 1, module
        numbers[name] = max(0, seen)
    return numbers
