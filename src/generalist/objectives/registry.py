"""Objectives by name. The keyword-only arguments other than the runtime ones are the recipe's fields."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from generalist.core.errors import UserError
from generalist.core.registry import Registry
from generalist.objectives.module import FunctionObjective, ObjectiveModule, as_module

OBJECTIVES: Registry[Callable[..., Any]] = Registry(
    "objective", runtime=("context", "networks"), called="model, x, y, *, context", instances=True
)
OBJECTIVES.__doc__ = """Objectives by name.

An entry is a function `(model, x, y, *, context, …) -> Loss` or a subclass of `ObjectiveModule`.
The keyword-only arguments of an entry, except `context` and `networks`, are the fields that a recipe may set. Their
types and ranges are checked when the recipe is loaded.

Example:
    >>> from generalist import OBJECTIVES
    >>> "trades" in OBJECTIVES.names()
    True
    >>> OBJECTIVES.check("trades", {"threat": "linf:8/255"})["beta"]
    6.0
"""


def make_objective(
    name: str, options: Mapping[str, Any], *, networks: Mapping[str, nn.Module] | None = None
) -> ObjectiveModule:
    """The objective `name` with its recipe fields.

    Args:
        name: its name in `OBJECTIVES`.
        options: recipe fields; those not given have their defaults.
        networks: trained networks, by the names in `networks_needed(name)`.

    Returns:
        A module with all hooks. Functions are wrapped in one without state.
    """
    entry, options = OBJECTIVES.get(name), OBJECTIVES.check(name, options)
    if not isinstance(entry, type):
        return as_module(partial(entry, **options))
    missing = [need for need in networks_needed(name) if need not in (networks or {})]
    if missing:
        raise UserError(f"objective {name!r} needs a trained network {missing[0]!r}; name a run or a recipe in `needs`")
    given = {need: (networks or {})[need] for need in networks_needed(name)}
    return as_module(entry(**options, networks=given) if given else entry(**options))


def networks_needed(name: str) -> tuple[str, ...]:
    """The names of the trained networks that the objective takes."""
    return _kind(name).needs


def carries_state(name: str) -> bool:
    """Whether state of the objective outlives a reset of the learner, so that steps before it matter after it."""
    return _kind(name).outlives_reset


def starts_itself(name: str) -> bool:
    """Whether the objective gives its learner its first weights."""
    return _kind(name).own_start


def _kind(name: str) -> type[ObjectiveModule]:
    entry = OBJECTIVES.get(name)
    return entry if isinstance(entry, type) and issubclass(entry, ObjectiveModule) else FunctionObjective
