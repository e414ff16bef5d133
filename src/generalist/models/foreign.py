"""Networks that are not ours: `timm/<name>` and `module:callable`."""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import nn

from generalist.core.errors import UserError, unknown

Builder = Callable[..., nn.Module]


def is_foreign(name: str) -> bool:
    """Whether a model's name is of the kind `timm/<name>` or `module:callable`."""
    return ":" in name or name.startswith("timm/")


def timm_builder(name: str, options: Mapping[str, Any]) -> Builder:
    """The builder of a timm network with random weights."""
    try:
        import timm
    except Exception as error:
        # A broken installation fails in many ways; all of them mean that timm cannot be used here.
        reason = _first_line(error)
        raise UserError(
            f"model 'timm/{name}' needs timm ({reason}); install it with: pip install 'generalist[timm]'"
        ) from None
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models())

    def build(*, classes: int, channels: int, size: int) -> nn.Module:
        try:
            return timm.create_model(name, pretrained=False, num_classes=classes, in_chans=channels, **options)
        except Exception as error:
            raise UserError(f"model 'timm/{name}' with {dict(options)}: {_first_line(error)}") from error

    return build


def callable_builder(name: str, options: Mapping[str, Any]) -> Builder:
    """The builder that `module:callable` names, given those of our arguments that its signature takes."""
    with _importable_here():
        function = _find(name)
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
            with _importable_here():
                network = function(**{**given, **options})
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"model {name!r} raised {type(error).__name__}: {_first_line(error)}") from error
        if not isinstance(network, nn.Module):
            raise UserError(f"model {name!r} returned a {type(network).__name__}; it must return a torch.nn.Module")
        return network

    return build


def _find(name: str) -> Callable[..., Any]:
    """The callable of a `module:callable`, which may be dotted on either side."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise UserError(f"model {name!r}; a model of your own is written module:callable")
    module = _import(name, module_name)
    try:
        found = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        public = [item for item in vars(module) if not item.startswith("_")]
        raise unknown(f"name in module {module_name!r}", path, public) from None
    if not callable(found):
        raise UserError(f"model {name!r} is a {type(found).__name__}; it must be a function or class")
    return found


def _import(name: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UserError(
                f"model {name!r}: no module {module_name!r} in the current directory or among the installed packages"
            ) from None
        raise UserError(f"model {name!r}: importing {module_name!r} failed: {_first_line(error)}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {_first_line(error)}"
        raise UserError(f"model {name!r}: importing {module_name!r} failed: {what}") from error


@contextmanager
def _importable_here() -> Iterator[None]:
    """The current directory at the head of the import path, as `python -m` has it."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
