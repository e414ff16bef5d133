"""What was trained and what came of it, in two plain sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from generalist.core.names import MEAN, UNION
from generalist.report.comparison import NATURAL

FEW = 6
"""So many names are listed in a sentence."""


def title(names: Sequence[str], data: Sequence[str]) -> str:
    on = listed(list(dict.fromkeys(data)))
    return f"{names[0]} on {on}" if len(names) == 1 else f"{len(names)} runs on {on}"


def lead(
    names: Sequence[str],
    *,
    mixed: Sequence[str],
    data: Sequence[str],
    epochs: Sequence[int],
    groups: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Two sentences.

    Args:
        names: Of all runs.
        mixed: Of those that a dial made.
        data: What they were trained on.
        epochs: How long each was trained.
        groups: Runs that were evaluated alike, as `results` makes them.
    """
    return [_trained(names, mixed, listed(list(dict.fromkeys(data))), sorted(set(epochs))), _found(names, groups)]


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _some(names: Sequence[str], what: str) -> str:
    """Their names, or how many they are."""
    if len(names) == 1:
        return names[0]
    return listed(names) if len(names) <= FEW else f"{len(names)} {what}"


def _trained(names: Sequence[str], mixed: Sequence[str], data: str, epochs: Sequence[int]) -> str:
    last = f"{epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"{epochs[0]}"
    long = f"on {data} for {last} epoch{'' if last == '1' else 's'}"
    trained = [name for name in names if name not in mixed]
    made = f"{_some(mixed, 'runs')} {_was(mixed)} mixed" if mixed else ""
    if not trained:
        return f"{made} by the dial from learners that were trained {long}."
    begin = f"{_some(trained, 'runs')} {_was(trained)} trained {long}"
    return f"{begin}, and {made} from learners by the dial." if mixed else f"{begin}."


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _found(names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> str:
    if not groups:
        it = "It has" if len(names) == 1 else "They have"
        return f"{it} not been attacked yet, so nothing is known about robustness."
    group = max(groups, key=lambda one: len(one["rows"]))
    rows, robust = group["rows"], group["sums_up"]
    images = f"{group['images']} test images"
    if len(rows) == 1:
        (row,) = rows
        parts = [f"{row['values'][c['name']]:.1f} % under {c['label']}" for c in group["columns"] if c["robust"]]
        named = "It" if len(names) == 1 else row["name"]
        return f"{named} is right on {row['values'][NATURAL]:.1f} % of {images} as they are, and on {listed(parts)}."
    best = max(rows, key=lambda row: row["values"][robust])
    clean = max(rows, key=lambda row: row["values"][NATURAL])
    first = f"{clean['name']} is right most often on images as they are ({clean['values'][NATURAL]:.1f} % of {images})"
    score = f"{best['values'][robust]:.1f} % {_measure(group)}"
    if best is clean:
        return f"{first} and under attack ({score})."
    return f"{first}, {best['name']} most often under attack ({score}; {best['values'][NATURAL]:.1f} % as they are)."


def _measure(group: Mapping[str, Any]) -> str:
    robust, threats = group["sums_up"], listed(group["threats"])
    if robust in (MEAN, UNION):
        return f"on average under {threats}" if robust == MEAN else f"under all of {threats}"
    return f"under {next(column['label'] for column in group['columns'] if column['name'] == robust)}"


def shared_ending(descriptions: Sequence[str]) -> tuple[list[str], str]:
    """Descriptions are "method: setting"; where all have the same setting, it is said once."""
    ends = {text.rpartition(": ")[2] for text in descriptions}
    if len(ends) != 1 or not all(": " in text for text in descriptions):
        return list(descriptions), ""
    return [text.rpartition(": ")[0] for text in descriptions], ends.pop()
