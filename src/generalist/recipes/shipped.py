"""The shipped recipes, <setting>-<method>: their names, and how a setting and a method become one.

Nothing here imports torch, so that names and descriptions are listed at once.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from generalist.core.errors import UserError
from generalist.core.files import read_text
from generalist.core.yaml_text import parse_yaml

Raw = dict[str, Any]


@cache
def recipe_names() -> dict[str, str]:
    """Every shipped recipe.

    Returns:
        Descriptions by name, `<setting>-<method>`.

    Example:
        >>> import generalist
        >>> "digits-generalist-t" in generalist.recipe_names()
        True
    """
    names = {}
    for setting in part_names("settings"):
        for method in part_names("methods"):
            if fits(setting, method):
                names[f"{setting}-{method}"] = _description(setting, method)
    return names


def recipe_parts() -> tuple[dict[str, str], dict[str, str]]:
    """Settings and methods with their descriptions; a method that some settings lack says where it is offered."""
    settings = {setting: str(shipped_part("settings", setting)["description"]) for setting in part_names("settings")}
    methods = {}
    for method in part_names("methods"):
        offered = [setting for setting in settings if fits(setting, method)]
        where = "" if len(offered) == len(settings) else f" (in {', '.join(offered)})"
        methods[method] = f"{shipped_part('methods', method)['description']}{where}"
    return settings, methods


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Raw:
    """`over` wins, mapping by mapping; null deletes; a component of another name replaces the old one.

    Of an objective, its attack is kept.
    """
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = {**_kept(key, old, value), **value} if _another(old, value) else merge(old, value)
        else:
            result[key] = value
    return result


def _another(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a component is renamed, or a gamma of one kind becomes one of another kind."""
    renamed = "name" in new and "name" in old and new["name"] != old["name"]
    kinds = ("share", "at", "modules")
    before, after = ({kind for kind in kinds if kind in given} for given in (old, new))
    by_module = "modules" in new or ("modules" in old and "depth" in new)  # its modules are one value
    return renamed or by_module or bool(before and after and before != after)


ATTACK_FIELDS = ("threat", "threats", "steps", "step_size")


def _kept(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Raw:
    """An objective of another name keeps the attack of the old one, as far as it has such fields."""
    attack = {field: old[field] for field in ATTACK_FIELDS if field in old}
    if key != "objective" or not attack:
        return {}
    from generalist.objectives import OBJECTIVES  # imports torch

    name = str(new.get("name", ""))
    if name not in OBJECTIVES or old.get("name") not in OBJECTIVES:
        return {}
    fields = OBJECTIVES.schema(name).model_fields
    return {field: value for field, value in attack.items() if field in fields}


def read_yaml(path: Path | Traversable) -> Raw:
    text = read_text(path) if isinstance(path, Path) else path.read_text(encoding="utf-8")
    raw = parse_yaml(text, str(path))
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping of recipe fields, got {type(raw).__name__}")
    return raw


def part_names(kind: str) -> list[str]:
    """The shipped "settings" or "methods"."""
    folder = resources.files("generalist.recipes") / kind
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@cache
def shipped_part(kind: str, name: str) -> Raw:
    """The fields of a shipped setting or method, with those of what it extends."""
    raw = read_yaml(resources.files("generalist.recipes") / kind / f"{name}.yaml")
    base = raw.pop("extends", None)
    return merge(shipped_part(kind, base), raw) if base else raw


def split_name(name: str) -> tuple[str, str]:
    """The setting and the method of a shipped recipe's name."""
    return next(
        (setting, name.removeprefix(f"{setting}-"))
        for setting in part_names("settings")
        if name.startswith(f"{setting}-") and name.removeprefix(f"{setting}-") in part_names("methods")
    )


def fits(setting: str, method: str) -> bool:
    """A method is offered where the setting has the tasks that its learners take their fields from."""
    raw = shipped_part("methods", method)
    tasks = {(learner or {}).get("task", name) for name, learner in raw["learners"].items()}
    return setting in raw.get("only", [setting]) and tasks <= set(shipped_part("settings", setting)["tasks"])


def compose(setting: str, method: str) -> Raw:
    """Setting and method, and what the method's authors do otherwise in such a setting (`in`)."""
    setting_raw, method_raw = shipped_part("settings", setting), shipped_part("methods", method)
    raw = merge(setting_raw, {key: value for key, value in method_raw.items() if key not in ("only", "in")})
    raw = merge(raw, method_raw.get("in", {}).get(setting, {}))
    needs = {need: f"{setting}-{other}" for need, other in raw.get("needs", {}).items()}
    own = {"name": f"{setting}-{method}", "description": _description(setting, method)}
    return raw | own | {"setting": setting, "method": method} | ({"needs": needs} if needs else {})


def _description(setting: str, method: str) -> str:
    return f"{shipped_part('methods', method)['description']}: {shipped_part('settings', setting)['description']}"
