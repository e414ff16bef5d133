"""Weights under other names: which of somebody's tensors are which of ours."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from generalist.core.errors import UserError
from generalist.core.types import StateTree

Rename = Mapping[str, str] | Literal["order"]
"""Their names (or the beginnings of them) → ours; or `order`: paired by order and shape."""
_SHOWN = 6


def paired_by_order(theirs: StateTree, names: Iterable[str], ours: StateTree) -> dict[str, str] | None:
    """Their names → ours, the first tensor of a kind with the first; None where kinds do not occur equally often.

    A kind is a shape and the last part of a name, such as `weight` or `running_mean`.
    """
    wanted = _by_kind(ours, ours)
    given = _by_kind(theirs, names)
    if {kind: len(found) for kind, found in wanted.items()} != {kind: len(found) for kind, found in given.items()}:
        return None
    return {their: our for kind in wanted for their, our in zip(given[kind], wanted[kind], strict=True)}


def _by_kind(state: StateTree, names: Iterable[str]) -> dict[tuple[str, tuple[int, ...]], list[str]]:
    found = defaultdict(list)
    for name in names:
        found[name.rpartition(".")[2], tuple(state[name].shape)].append(name)
    return dict(found)


def rules(pairs: Mapping[str, str]) -> dict[str, str]:
    """The shortest way to say the pairs: by module, where that gives the same."""
    short = {}
    for their, our in pairs.items():
        theirs, ours = their.split("."), our.split(".")
        while len(theirs) > 1 and len(ours) > 1 and theirs[-1] == ours[-1]:
            theirs, ours = theirs[:-1], ours[:-1]
        short[".".join(theirs)] = ".".join(ours)
    return short if all(renamed(their, short) == our for their, our in pairs.items()) else dict(pairs)


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """The name with its longest beginning that a rule is for replaced."""
    for old in sorted(rename, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return rename[old] + name[len(old) :]
    return name


def suggestion(pairs: Mapping[str, str]) -> str:
    """What a user could do, in a few words."""
    found = {old: new for old, new in rules(pairs).items() if old != new}
    listed = ", ".join(f"{old} → {new}" for old, new in list(found.items())[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"by order and shape they would pair: {listed}{more}"


def check_rules(rename: Mapping[str, str], names: Iterable[str], source: str) -> None:
    """Refuse a rule that is for no tensor."""
    given = list(names)
    for old in rename:
        if not any(name == old or name.startswith(f"{old}.") for name in given):
            raise UserError(f"{source} has no {old!r} to rename; it has {', '.join(given[:3])}, …")
