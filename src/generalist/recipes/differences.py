"""What makes two recipes differ: the fields that decide results."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import yaml

from generalist.core.errors import shown
from generalist.recipes.schema import RUNTIME_ONLY, Recipe, Section


def _runtime_fields(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in section.model_fields.items():
        here = (*path, info.alias or name)
        if RUNTIME_ONLY in info.metadata:
            yield here
        elif isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _runtime_fields(info.annotation, here)


RUNTIME_FIELDS = tuple(_runtime_fields(Recipe))
"""The paths of the fields that are marked `RUNTIME_ONLY`."""


def decisive(plain: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a plain recipe that decide results."""
    return {
        key: decisive(value, (*path, key)) if isinstance(value, Mapping) else value
        for key, value in plain.items()
        if (*path, key) not in RUNTIME_FIELDS
    }


Differing = tuple[tuple[str, ...], Any, Any]
"""A field's path, its value in the one recipe and in the other."""


def differences(ours: Recipe, theirs: Recipe) -> list[Differing]:
    """The fields that decide results and differ."""

    def walk(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[Differing]:
        by_module = any(isinstance(side, Mapping) and "modules" in side for side in (a, b)) and path[-1:] == ("gamma",)
        if isinstance(a, Mapping) and isinstance(b, Mapping) and not by_module:
            for key in [*a, *(key for key in b if key not in a)]:
                yield from walk(a.get(key), b.get(key), (*path, key))
        elif path == ("data", "extra", "file") and a and b and PurePath(a).name == PurePath(b).name:
            return  # a folder may have been moved
        elif a != b:
            yield path, a, b

    return list(walk(decisive(ours.plain()), decisive(theirs.plain()), ()))


def first_difference(ours: Recipe, theirs: Recipe) -> str | None:
    """The first field that decides results and differs, as `field: ours, theirs`; None where there is none."""
    for path, here, there in differences(ours, theirs):
        return f"{'.'.join(path)} is {shown(here)} here and {shown(there)} there"
    return None


def settings_between(ours: Recipe, theirs: Recipe) -> list[str]:
    """`field.path=value` for every field that makes our recipe theirs; none where it takes more than that."""
    changes = []
    for path, _, there in differences(ours, theirs):
        if path == ("name",) or (path[0] == "learners" and len(path) < 3):
            return []
        value = yaml.safe_dump(there, default_flow_style=True, allow_unicode=True, width=10**6)
        value = value.removesuffix("...\n").strip()  # which YAML writes after a lone number
        changes.append(f"{'.'.join(path)}={value}")
    return changes
