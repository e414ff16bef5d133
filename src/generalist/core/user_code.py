"""Code of the user's own: found by `module:callable`, and known by its source."""

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from generalist.core.errors import UserError, shown, unknown

OWN_PACKAGES = ("torch", "generalist")
_STANDARD_LIBRARY = Path(os.__file__).resolve().parent


def is_reference(text: str) -> bool:
    """Whether a text, which might also be a path, has the form `module:callable`."""
    module, colon, path = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The function or class of a `module:callable`, which may be dotted on either side.

    The current folder is searched first. `kind` says in errors what was looked for.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise UserError(f"{kind} {shown(name)}; one of your own is written module:callable, such as mypkg.mine:build")
    with importable_here():
        module = _import(kind, name, module_name)
    try:
        found = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        public = [item for item in vars(module) if not item.startswith("_")]
        raise unknown(f"name in module {module_name!r}:", path, public) from None
    if not callable(found):
        raise UserError(f"{kind} {name!r} is a {type(found).__name__}; it must be a function or class")
    return found


def _import(kind: str, name: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UserError(
                f"{kind} {shown(name)}: no module {shown(module_name)} in the current directory"
                " or among the installed packages"
            ) from None
        raise UserError(f"{kind} {name!r}: importing {module_name!r} failed: {first_line(error)}") from error
    except (Exception, SystemExit) as error:  # a script without a main guard may exit
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{kind} {shown(name)}: importing {shown(module_name)} failed: {what}") from error


@contextmanager
def importable_here() -> Iterator[None]:
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


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def raised(kind: str, name: str, error: Exception) -> UserError:
    """What the user's own code raised, in one line, with the place in the user's own files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users_file(frame.filename)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return UserError(f"{kind} {name!r} raised {type(error).__name__}: {first_line(error)}{where}")


def is_users(function: Callable[..., Any]) -> bool:
    """Whether a registered function or class is not this package's."""
    return _module_name(function).partition(".")[0] not in OWN_PACKAGES


def source_digest_parts(function: Callable[..., Any]) -> Iterator[bytes]:
    """The source of a user's function: its module, and all modules of the user's own that this one refers to.

    A function without a source file (of an interactive session) is another one in every process.
    """
    name = _module_name(function)
    if not _source(sys.modules.get(name)):
        yield f"{os.getpid()} {id(function)}".encode()
    yield from sources([name], package=name.partition(".")[0])


def sources(names: Iterable[str], *, package: str | None = None) -> Iterator[bytes]:
    """The files of these modules, and those of the user's own, or of `package`, that they refer to, in order."""
    found = set(names)
    waiting = list(found)

    def followed(module: ModuleType) -> bool:
        return _is_users_module(module) or (package is not None and module.__name__.partition(".")[0] == package)

    while waiting:
        module = sys.modules.get(waiting.pop())
        for value in list(vars(module).values()) if module is not None and followed(module) else ():
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            if other is not None and other.__name__ not in found and followed(other):
                found.add(other.__name__)
                waiting.append(other.__name__)
    for name in sorted(found):
        yield _source(sys.modules.get(name))


def _source(module: ModuleType | None) -> bytes:
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file and Path(file).is_file() else b""


def _module_name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", None) or "")


def _is_users_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and module.__name__.partition(".")[0] not in OWN_PACKAGES and _is_users_file(str(file))


def _is_users_file(file: str) -> bool:
    """Whether it is a file of the user's own, not an installed package's, ours or Python's."""
    path = Path(file).resolve()
    ours = path.is_relative_to(Path(__file__).resolve().parents[1])
    return not ours and "site-packages" not in path.parts and not path.is_relative_to(_STANDARD_LIBRARY)
