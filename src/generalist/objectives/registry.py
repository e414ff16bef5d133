"""Objectives by name. The keyword-only arguments other than the runtime ones are the recipe's fields."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from torch import nn

from generalist.core.errors import UserError
from generalist.core.registry import Registry
from generalist.core.types import Objective
from generalist.objectives.module import ObjectiveModule

OBJECTIVES: Registry[Callable[..., Any]] = Registry(
    "objective", runtime=("context", "networks"), called="model, x, y, *, context", instances=True
)
"""Functions that are objectives, and classes whose instances are."""


def make_objective(
    name: str, options: Mapping[str, Any], *, networks: Mapping[str, nn.Module] | None = None
) -> Objective:
    """The objective with its fields bound, and the trained networks it needs, by the names it calls them."""
    entry, options = OBJECTIVES.get(name), OBJECTIVES.check(name, options)
    if not isinstance(entry, type):
        return cast(Objective, partial(entry, **options))
    missing = [need for need in networks_needed(name) if need not in (networks or {})]
    if missing:
        raise UserError(f"objective {name!r} needs a trained network {missing[0]!r}; name a run or a recipe in `needs`")
    given = {need: (networks or {})[need] for need in networks_needed(name)}
    return cast(Objective, entry(**options, networks=given) if given else entry(**options))


def networks_needed(name: str) -> tuple[str, ...]:
    entry = OBJECTIVES.get(name)
    return entry.needs if isinstance(entry, type) and issubclass(entry, ObjectiveModule) else ()


def carries_state(name: str) -> bool:
    """Whether something outlives a reset of the learner, so that steps before it matter after it."""
    entry = OBJECTIVES.get(name)
    return isinstance(entry, type) and issubclass(entry, ObjectiveModule) and entry.outlives_reset
