"""What modules hold beside their tensors, as values that can be compared."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module()))
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_ATOMS = (*_NUMBERS, type, torch.dtype, torch.device, torch.memory_format, FunctionType, BuiltinFunctionType)


class Unknown:
    """Stands for a value that cannot be compared: it is like nothing, itself included."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "unknown"


def attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, value) of every attribute of every module that is not torch's own; two equal lists mean equal models."""
    for name, module in model.named_modules():
        yield name, type(module)
        for key, value in vars(module).items():
            if key not in _OF_TORCH:
                yield f"{name}.{key}", comparable(value)


def comparable(value: Any) -> Any:
    """A copy that does not follow later changes; tensors by identity and version, what is not plain as `Unknown`."""
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, Tensor):
        return "tensor", id(value), value._version
    if isinstance(value, tuple | list):
        return type(value), [comparable(item) for item in value]
    if isinstance(value, dict):
        return dict, [(comparable(key), comparable(item)) for key, item in value.items()]
    if type(value) in (set, frozenset) and all(isinstance(item, _ATOMS) for item in value):
        return type(value), frozenset(value)
    if is_dataclass(value):
        return type(value), [comparable(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, partial):
        return partial, comparable(value.func), comparable(value.args), comparable(value.keywords)
    return Unknown()
