"""Evaluated runs as the page's tables and its trade-off plane."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from generalist.core.files import fingerprint
from generalist.core.names import MEAN, UNION
from generalist.report.comparison import COST, NATURAL, Comparison, Entry, make_comparison
from generalist.report.paper import PaperTable, paper_tables

NORM_NAMES = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1"}


def pretty(threat: str) -> str:
    """linf:8/255 → ℓ∞ 8/255, which no line breaks."""
    norm, _, eps = threat.partition(":")
    return f"{NORM_NAMES[norm]}\u00a0{eps}" if norm in NORM_NAMES and eps else threat


def result_groups(
    entries: Sequence[Entry], *, paper: PaperTable | None, seedless: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Runs that were evaluated alike are compared; the others have tables of their own.

    Args:
        entries: The evaluated runs.
        paper: Whose values stand beside ours; if None, the first table that is about these data and networks.
        seedless: By name, a text that is the same for runs that differ in the seed alone.
    """
    alike: dict[str, list[Entry]] = {}
    for entry in entries:
        key = fingerprint([entry.data, entry.record["examples"], sorted(entry.threats), entry.record["stages"]])
        alike.setdefault(key, []).append(entry)
    names = [entry.name for entry in entries]
    return [{**_group(rows, paper or _fitting_table(rows), seedless), "of": names} for rows in alike.values()]


def _fitting_table(entries: Sequence[Entry]) -> PaperTable | None:
    """The first table of a paper that has something to put beside these runs."""
    for table in paper_tables():
        known = any((entry.data, entry.network or "") in table.rows and entry.paper_names for entry in entries)
        if known and any(row.paper for row in make_comparison(entries, paper=table).rows):
            return table
    return None


def _group(entries: Sequence[Entry], paper: PaperTable | None, seedless: Mapping[str, str]) -> dict[str, Any]:
    comparison = make_comparison(entries, paper=paper)
    columns = [
        {
            "name": column.name,
            "label": _label(column.name, column.threat, column.attack),
            "digits": column.digits,
            "robust": column.name not in (NATURAL, COST, MEAN, UNION),
            "accuracy": column.name != COST,
        }
        for column in comparison.columns
    ]
    rows = [
        {
            "name": row.name,
            "values": dict(row.values),
            "paper": dict(row.paper),
            "ranks": {c.name: comparison.ranks(c)[place] for c in comparison.columns},
            "interval": _intervals(entry, comparison),
            "selected": row.selected,
            "ours": "generalist" in (row.method or row.recipe),
        }
        for place, (row, entry) in enumerate(zip(comparison.rows, entries, strict=True))
    ]
    return {
        "data": comparison.data,
        "images": comparison.images,
        "suite": comparison.suite,
        "threats": [pretty(threat) for threat in comparison.threats],
        "columns": columns,
        "rows": rows,
        "seeds": _over_seeds(rows, [column.name for column in comparison.columns], seedless),
        "paper": comparison.paper,
        "paper_rows": [{"name": row.name, "paper": dict(row.paper)} for row in comparison.paper_rows],
        "notes": list(comparison.notes),
        "sums_up": comparison.robust.name,
    }


def _label(name: str, threat: str, attack: str) -> str:
    if name in (COST, NATURAL):
        return "training (s)" if name == COST else "unattacked"
    return name if not attack or name in (MEAN, UNION) else f"{attack} {pretty(threat)}"


def _intervals(entry: Entry, comparison: Comparison) -> dict[str, Any]:
    """95 % intervals by column, where the record has them."""
    bounds = entry.record.get("interval_95", {})
    found = {NATURAL: bounds.get("natural")}
    for column in comparison.columns:
        if column.threat:
            found[column.name] = bounds.get("accuracy", {}).get(column.threat, {}).get(column.attack)
    return {name: interval for name, interval in found.items() if interval}


def _over_seeds(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], seedless: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Mean and standard deviation of runs that differ in the seed alone."""
    same: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        same.setdefault(seedless[row["name"]], []).append(row)
    found = []
    for members in (each for each in same.values() if len(each) > 1):
        values = {c: [m["values"][c] for m in members if c in m["values"]] for c in columns}
        known = {c: each for c, each in values.items() if len(each) > 1}
        found.append({
            "name": members[0]["name"].partition(" (")[0],
            "runs": [m["name"] for m in members],
            "mean": {c: round(statistics.mean(each), 3) for c, each in known.items()},
            "sd": {c: round(statistics.stdev(each), 3) for c, each in known.items()},
            "ours": members[0]["ours"],
        })  # fmt: skip
    return found
