"""Recipes by name or file: `extends`, task templates and overrides resolved into one checked recipe."""

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from generalist.core.errors import LONGEST_VALUE, UserError, cut, shown, unknown
from generalist.core.files import read_text, user_path
from generalist.core.threat import Threat, parse_fraction
from generalist.core.yaml_text import DEEPEST, parse_yaml
from generalist.objectives import OBJECTIVES
from generalist.recipes.schema import Recipe, parse_recipe

Raw = dict[str, Any]


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), *, method: str | None = None) -> Recipe:
    """A shipped name or a YAML file, with `field.path=value` overrides.

    A setting's name, or a file that extends one, becomes a recipe by a `method`, whose name is added to its own.
    """
    raw = _resolve(str(name_or_path), here=Path.cwd(), trail=(), method=method)
    raw = _fill_from_tasks(raw)
    for override in sorted(overrides, key=_names_component, reverse=True):
        raw = merge(raw, _parse_override(override, raw))
    return parse_recipe(_located(raw, Path.cwd()))


def _names_component(override: str) -> bool:
    """Another name replaces all of a component, so it goes before the fields, wherever it was given."""
    return override.partition("=")[0].strip().endswith(".name")


@cache
def recipe_names() -> dict[str, str]:
    """Every shipped name with its description."""
    names = {}
    for setting in _files("settings"):
        for method in _files("methods"):
            if _fits(setting, method):
                names[f"{setting}-{method}"] = _compose(setting, method)["description"]
    return names


def recipe_parts() -> tuple[dict[str, str], dict[str, str]]:
    """Settings and methods with their descriptions; a method that some settings lack says where it is offered."""
    settings = {setting: str(_shipped("settings", setting)["description"]) for setting in _files("settings")}
    methods = {}
    for method in _files("methods"):
        offered = [setting for setting in settings if _fits(setting, method)]
        where = "" if len(offered) == len(settings) else f" (in {', '.join(offered)})"
        methods[method] = f"{_shipped('methods', method)['description']}{where}"
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
    """Whether a component is renamed, or a gamma of breakpoints becomes a share or the other way round."""
    renamed = "name" in new and "name" in old and new["name"] != old["name"]
    return renamed or ("share" in old and "at" in new) or ("at" in old and "share" in new)


ATTACK_FIELDS = ("threat", "threats", "steps", "step_size")


def _kept(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Raw:
    """An objective of another name keeps the attack of the old one, as far as it has such fields."""
    name = str(new.get("name", ""))
    if key != "objective" or name not in OBJECTIVES or old.get("name") not in OBJECTIVES:
        return {}
    fields = OBJECTIVES.schema(name).model_fields
    return {field: old[field] for field in ATTACK_FIELDS if field in old and field in fields}


def _resolve(name: str, *, here: Path, trail: tuple[Path, ...], method: str | None) -> Raw:
    if name in _files("settings"):
        return _compose(name, _method_for(name, method, trail))
    if name in recipe_names():
        if method is not None:
            raise UserError(
                f"{shown(name)} has its method already; --method goes with a setting, or a file that extends one"
            )
        return _compose(*_split(name))
    path = user_path(here / user_path(name)).resolve()
    if path in trail:
        raise UserError(f"recipes extend each other in a circle: {' → '.join(map(str, (*trail, path)))}")
    if not path.is_file():
        raise _no_recipe(name, path, trail)
    raw = _located(read_yaml(path), path.parent)
    base = raw.pop("extends", None)
    raw.setdefault("name", path.stem)
    if base is None:
        if method is not None:
            raise UserError(f"{path} extends no setting, so --method has no use for it")
        return raw
    if not isinstance(base, str):
        raise UserError(f"{path}: extends takes one recipe name or file, got {shown(base)}")
    whole = _resolve(base, here=path.parent, trail=(*trail, path), method=method)
    own = raw.get("description") or f"{path.name}, extends {base}"
    if method is not None and not trail:
        raw["name"] = f"{raw['name']}-{method}"
        own = f"{_shipped('methods', method)['description']}: {own}"
    return merge(whole, raw | {"description": own})


def _method_for(setting: str, method: str | None, trail: tuple[Path, ...]) -> str:
    offered = [name for name in _files("methods") if _fits(setting, name)]
    if method is None:
        what = f"{trail[-1]} extends the setting {setting!r}" if trail else f"{setting!r} is a setting"
        raise UserError(f"{what}, which needs a method: add --method, one of {', '.join(offered)}")
    if method not in offered:
        raise unknown(f"method for {setting}:", method, offered)
    return method


def _located(raw: Raw, folder: Path) -> Raw:
    """With the paths of data, init and needs as they are found from anywhere; relative ones are of the folder."""
    init, needs, data = (raw.get(key) for key in ("init", "needs", "data"))
    if isinstance(init, Mapping) and isinstance(init.get("from"), str):
        raw = {**raw, "init": {**init, "from": _found_from("init.from", init["from"], folder)}}
    if isinstance(needs, Mapping):
        raw = {**raw, "needs": {key: _needed_from(key, value, folder) for key, value in needs.items()}}
    if not isinstance(data, Mapping):
        return raw
    changed = dict(data)
    if isinstance(data.get("root"), str):
        changed["root"] = _found_from("data.root", data["root"], folder)
    extra = data.get("extra")
    if isinstance(extra, Mapping) and isinstance(extra.get("file"), str):
        changed["extra"] = {**extra, "file": _found_from("data.extra.file", extra["file"], folder)}
    return {**raw, "data": changed}


def _needed_from(need: str, given: Any, folder: Path) -> Any:
    """A run or a file where there is one of that name, else it is the name of a recipe."""
    if not isinstance(given, str) or given in recipe_names():
        return given
    found = _found_from(f"needs.{need}", given, folder)
    return found if Path(found).exists() else given


def _found_from(field: str, given: str, folder: Path) -> str:
    try:
        return str(user_path(folder / user_path(given)).resolve())
    except UserError as error:
        raise UserError(f"{field}: {error}") from None


def _no_recipe(name: str, path: Path, trail: tuple[Path, ...]) -> UserError:
    by = f", which {trail[-1]} extends" if trail else ""
    if path.suffix in (".yaml", ".yml"):
        return UserError(f"there is no recipe file {path}{by}")
    if difflib.get_close_matches(name, recipe_names(), n=1):
        return unknown("recipe", name, recipe_names())
    return UserError(
        f"unknown recipe {shown(name)}{by}; `generalist recipes` lists the shipped ones, or give a .yaml file"
    )


def read_yaml(path: Path | Traversable) -> Raw:
    text = read_text(path) if isinstance(path, Path) else path.read_text(encoding="utf-8")
    raw = parse_yaml(text, str(path))
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping of recipe fields, got {type(raw).__name__}")
    return raw


def _files(kind: str) -> list[str]:
    folder = resources.files("generalist.recipes") / kind
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@cache
def _shipped(kind: str, name: str) -> Raw:
    raw = read_yaml(resources.files("generalist.recipes") / kind / f"{name}.yaml")
    base = raw.pop("extends", None)
    return merge(_shipped(kind, base), raw) if base else raw


def _split(name: str) -> tuple[str, str]:
    return next(
        (setting, name.removeprefix(f"{setting}-"))
        for setting in _files("settings")
        if name.startswith(f"{setting}-") and name.removeprefix(f"{setting}-") in _files("methods")
    )


def _fits(setting: str, method: str) -> bool:
    """A method is offered where the setting has the tasks that its learners take their fields from."""
    raw = _shipped("methods", method)
    tasks = {(learner or {}).get("task", name) for name, learner in raw["learners"].items()}
    return setting in raw.get("only", [setting]) and tasks <= set(_shipped("settings", setting)["tasks"])


def _compose(setting: str, method: str) -> Raw:
    """Setting and method, and what the method's authors do otherwise in such a setting (`in`)."""
    setting_raw, method_raw = _shipped("settings", setting), _shipped("methods", method)
    raw = merge(setting_raw, {key: value for key, value in method_raw.items() if key not in ("only", "in")})
    raw = merge(raw, method_raw.get("in", {}).get(setting, {}))
    needs = {need: f"{setting}-{other}" for need, other in raw.get("needs", {}).items()}
    description = f"{method_raw['description']}: {setting_raw['description']}"
    return raw | {"name": f"{setting}-{method}", "description": description} | ({"needs": needs} if needs else {})


def _fill_from_tasks(raw: Raw) -> Raw:
    """A learner takes what it does not say itself from the task template of its name, or of its `task`."""
    tasks = _mapping(raw, "tasks", "task templates by name")
    learners = {}
    for name in _mapping(raw, "learners", "learners by name"):
        own = dict(_mapping(raw["learners"], name, f"the fields of learner {shown(name)}"))
        task = own.pop("task", name)
        if not isinstance(task, str):
            raise UserError(f"learner {shown(name)}: task is the name of a task template, got {shown(task)}")
        if task not in tasks and "objective" not in own:
            if not tasks:
                raise UserError(f"learner {shown(name)} has no objective; give it one, such as objective: natural")
            raise unknown(f"task for learner {shown(name)}:", task, tasks)
        template = _mapping(tasks, task, f"the fields of task {shown(task)}")
        learners[name] = merge(template, _scaled(own, template))
    return {key: value for key, value in raw.items() if key != "tasks"} | {"learners": learners}


def _scaled(own: Raw, template: Mapping[str, Any]) -> Raw:
    """`threat: {times: 1/2}` is half the template's radius, with steps half as long."""
    objective, base = own.get("objective"), template.get("objective")
    if not isinstance(objective, Mapping) or not isinstance(objective.get("threat"), Mapping):
        return own
    times, old = objective["threat"].get("times"), base.get("threat") if isinstance(base, Mapping) else None
    if times is None or len(objective["threat"]) > 1 or old is None:
        raise UserError(
            f"threat takes norm:eps, or {{times: 1/2}} of its task's, got {shown(dict(objective['threat']))}"
        )
    threat = Threat.parse(old)
    changed = {**objective, "threat": f"{threat.norm}:{threat.eps * parse_fraction(times)}"}
    if isinstance(base, Mapping) and "step_size" in base:
        changed.setdefault("step_size", str(parse_fraction(base["step_size"]) * parse_fraction(times)))
    return {**own, "objective": changed}


def _mapping(raw: Mapping[str, Any], field: str, what: str) -> Mapping[str, Any]:
    value = raw.get(field)
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{cut(field, LONGEST_VALUE)} is a mapping of {what}, got {shown(value)}")
    return value or {}


def _parse_override(text: str, raw: Raw) -> Raw:
    """ "learners.natural.optimizer.lr=0.05" → a mapping to merge; only what exists can be set."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) > DEEPEST:
        raise UserError(f"--set takes field.path=value, such as training.epochs=10, got {shown(text)}")
    if keys[0] == "learners" and len(keys) < 3:
        raise UserError(f"--set changes one field of a learner, such as learners.linf.gamma=rest, got {shown(text)}")
    if keys[0] == "learners" and keys[1] not in raw["learners"]:
        raise unknown("learner", keys[1], raw["learners"])
    parsed = parse_yaml(value, f"--set {cut(path, LONGEST_VALUE)}: {shown(value)}")
    for key in reversed(keys):
        parsed = {key: parsed}
    result: Raw = parsed
    return result
