"""Recipes by name or file: `extends`, task templates and overrides resolved into one checked recipe."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generalist.core.errors import LONGEST_VALUE, UserError, cut, shown, unknown
from generalist.core.files import user_path
from generalist.core.threat import Threat, parse_fraction
from generalist.core.yaml_text import DEEPEST, parse_yaml
from generalist.models import PRETRAINED
from generalist.recipes.schema import Recipe, epoch_at, parse_recipe
from generalist.recipes.shipped import (
    ATTACK_FIELDS,
    Raw,
    compose,
    fits,
    merge,
    part_names,
    read_yaml,
    recipe_names,
    shipped_part,
    split_name,
)

ORIGIN_FIELDS = ("setting", "method")
"""What a recipe was composed of; nobody gives them but the composition."""


Overrides = Sequence[str] | Mapping[str, Any]
"""Recipe fields to change: `["training.epochs=10"]`, or `{"training.epochs": 10}`."""


def load_recipe(
    recipe: str | Path | Mapping[str, Any], overrides: Overrides = (), *, method: str | None = None
) -> Recipe:
    """A recipe, with everything resolved and checked.

    Args:
        recipe: A shipped name, a setting's name, a YAML file, or what such a file would hold as a mapping. The last
            two may extend another recipe or a setting (`extends: digits-at`); with a setting, `method` may name the
            one that is meant where no other is asked for.
        overrides: Fields to change: `{"training.epochs": 10}`, or `["training.epochs=10"]` as on the command line.
        method: The method that completes a setting, or a recipe that extends one; its name is added to the recipe's.

    Returns:
        The recipe: everything that decides a result.

    Example:
        >>> import generalist
        >>> generalist.load_recipe("digits-at", {"training.epochs": 3}).training.epochs
        3
        >>> mine = {"extends": "digits", "name": "mine", "training": {"epochs": 5}}
        >>> generalist.load_recipe(mine, method="trades").name
        'mine-trades'
    """
    if isinstance(recipe, Mapping):
        raw = _extended(dict(recipe), Path.cwd() / "recipe", trail=(), method=method)
    else:
        raw = _resolve(str(recipe), here=Path.cwd(), trail=(), method=method)
    raw = _fill_from_tasks(raw)
    for override in sorted(as_texts(overrides), key=_names_component, reverse=True):
        raw = merge(raw, _parse_override(override, raw))
    checked = parse_recipe(_located(_init_completed(raw), Path.cwd()))
    return checked.model_copy(update={"method": method_of(checked)}) if checked.method else checked


def _init_completed(raw: Raw) -> Raw:
    """A recipe whose learners start one after the other goes on from a checkpoint where the second one starts."""
    init, learners, training = (raw.get(key) for key in ("init", "learners", "training"))
    if not (isinstance(init, Mapping) and "epoch" not in init and isinstance(training, Mapping)):
        return raw
    if init.get("from") == PRETRAINED:  # which knows nothing of attacks
        return raw
    starts = [learner.get("starts", 0) for learner in (learners or {}).values() if isinstance(learner, Mapping)]
    try:
        later = [start for start in map(parse_fraction, starts) if start > 0]
    except UserError:
        return raw  # the schema says what is wrong
    epochs = training.get("epochs")
    if not later or not isinstance(epochs, int):
        return raw
    return {**raw, "init": {**init, "epoch": epoch_at(min(later), epochs)}}


def as_texts(overrides: Overrides) -> list[str]:
    """`{"training.epochs": 10}` as `training.epochs=10`; JSON is YAML, and what it lacks (a threat) is text."""
    if isinstance(overrides, str):
        raise UserError(f"overrides is a mapping or a list of field=value, got the text {shown(overrides)}")
    if isinstance(overrides, Mapping):
        return [f"{field}={json.dumps(value, default=str)}" for field, value in overrides.items()]
    return list(overrides)


def method_of(recipe: Recipe) -> str | None:
    """The shipped method that a recipe follows; None where its learners have other objectives than the method gives.

    Recipes of earlier versions did not store their method: theirs is known where the whole name is a shipped one.
    """
    setting, method = recipe.setting, recipe.method
    if method is None and recipe.name in recipe_names():
        setting, method = split_name(recipe.name)
    if method is None or f"{setting}-{method}" not in recipe_names():
        return None
    shipped = parse_recipe(_fill_from_tasks(compose(str(setting), method)))
    return method if _objectives(recipe) == _objectives(shipped) else None


def _objectives(recipe: Recipe) -> dict[str, Any]:
    """What makes a method, by learner: the objective with its fields, those of its attack aside, what of the network it
    trains, and when."""
    found = {}
    for name, learner in recipe.learners.items():
        fields = {key: value for key, value in learner.objective.options.items() if key not in ATTACK_FIELDS}
        when = learner.trains, learner.starts, learner.ends
        found[name] = learner.objective.name, fields, learner.weight_perturbation, *when
    return found


def _names_component(override: str) -> bool:
    """Another name replaces all of a component, so it goes before the fields, wherever it was given."""
    return override.partition("=")[0].strip().endswith(".name")


def _resolve(name: str, *, here: Path, trail: tuple[Path, ...], method: str | None) -> Raw:
    if name in part_names("settings"):
        return compose(name, _method_for(name, method, trail))
    if name in recipe_names():
        if method is not None:
            raise UserError(
                f"{shown(name)} has its method already; --method goes with a setting, or a file that extends one"
            )
        return compose(*split_name(name))
    path = user_path(here / user_path(name)).resolve()
    if path in trail:
        raise UserError(f"recipes extend each other in a circle: {' → '.join(map(str, (*trail, path)))}")
    if not path.is_file():
        raise _no_recipe(name, path, trail)
    return _extended(read_yaml(path), path, trail=trail, method=method)


def _extended(given: Raw, path: Path, *, trail: tuple[Path, ...], method: str | None) -> Raw:
    """The fields over those of what they extend; `path` is the file that has them, or stands for one."""
    raw = _located(given, path.parent)
    base = raw.pop("extends", None)
    for field in ORIGIN_FIELDS if base is not None else ():
        if field in raw and (field == "setting" or base in recipe_names()):
            raise UserError(f"{path}: {field} is that of what the file extends; choose a method with --method")
    own_method = raw.pop("method", None) if base is not None else None
    if own_method is not None and not isinstance(own_method, str):
        raise UserError(f"{path}: method takes the name of a shipped method, got {shown(own_method)}")
    raw.setdefault("name", path.stem)
    if base is None:
        if method is not None:
            raise UserError(f"{path} extends no setting, so --method has no use for it")
        return raw
    if not isinstance(base, str):
        raise UserError(f"{path}: extends takes one recipe name or file, got {shown(base)}")
    whole = _resolve(base, here=path.parent, trail=(*trail, path), method=method or own_method)
    own = raw.get("description") or f"{path.name}, extends {base}"
    if method is not None and not trail:
        raw["name"] = f"{raw['name']}-{method}"
        own = f"{shipped_part('methods', method)['description']}: {own}"
    return merge(whole, raw | {"description": own})


def _method_for(setting: str, method: str | None, trail: tuple[Path, ...]) -> str:
    offered = [name for name in part_names("methods") if fits(setting, name)]
    if method is None:
        what = f"{trail[-1]} extends the setting {setting!r}" if trail else f"{setting!r} is a setting"
        raise UserError(f"{what}, which needs a method: add --method, one of {', '.join(offered)}")
    if method not in offered:
        raise unknown(f"method for {setting}:", method, offered)
    return method


def _located(raw: Raw, folder: Path) -> Raw:
    """With the paths of data, init and needs as they are found from anywhere; relative ones are of the folder."""
    init, needs, data = (raw.get(key) for key in ("init", "needs", "data"))
    if isinstance(init, Mapping) and isinstance(init.get("from"), str) and init["from"] != PRETRAINED:
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
    if keys[0] in ORIGIN_FIELDS:
        raise UserError(f"--set does not change the {keys[0]} of a recipe; choose a method with --method")
    if keys[0] == "learners" and len(keys) < 3:
        raise UserError(f"--set changes one field of a learner, such as learners.linf.gamma=rest, got {shown(text)}")
    if keys[0] == "learners" and keys[1] not in raw["learners"]:
        raise unknown("learner", keys[1], raw["learners"])
    parsed = parse_yaml(value, f"--set {cut(path, LONGEST_VALUE)}: {shown(value)}")
    for key in reversed(keys):
        parsed = {key: parsed}
    result: Raw = parsed
    return result
