"""Several evaluated runs side by side: a row a run, ranks by column, the papers' values beside ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from generalist.core.errors import UserError
from generalist.evaluation import MEAN, UNION
from generalist.report.paper import PAPER_NAMES, RADII, PaperTable, metric_names

UNIONS = (MEAN, UNION)
NATURAL, COST = "natural", "cost"
ON_TEST = "test (!)"
Rank = Literal[0, 1, 2]
"""1 is the best of a column, 2 the second best, 0 neither."""


@dataclass(frozen=True)
class Entry:
    """One run in plain values; `network` is the papers' name of its network, `record` its evaluation.

    `outdated` says that the record is of an earlier model than the run has now.
    """

    name: str
    recipe: str
    run: str
    method: str | None
    data: str
    network: str | None
    selected_by: str
    seconds: float | None
    record: Mapping[str, Any]
    outdated: bool = False

    @property
    def paper_names(self) -> tuple[str, ...]:
        return PAPER_NAMES.get(self.method or "", ())

    @property
    def threats(self) -> list[str]:
        return [threat for threat in self.record["accuracy"] if threat not in UNIONS]


@dataclass(frozen=True)
class Column:
    """`threat` is empty for the natural accuracy and the cost."""

    name: str
    threat: str = ""
    attack: str = ""
    lower_is_better: bool = False
    digits: int = 2

    def show(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


@dataclass(frozen=True)
class Row:
    """`paper` has the paper's values by column; a row of the paper alone has nothing else."""

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    recipe: str = ""
    method: str | None = None
    run: str = ""
    selected_by: str = ""

    @property
    def selected(self) -> str:
        return ON_TEST if self.selected_by == "test" else self.selected_by


@dataclass(frozen=True)
class Comparison:
    """`rows` are the runs, `paper_rows` what only the paper has; `robust` is the column that sums up robustness."""

    suite: str
    data: str
    images: int
    threats: tuple[str, ...]
    columns: tuple[Column, ...]
    robust: Column
    rows: tuple[Row, ...]
    paper: str = ""
    paper_rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The comparison as a table of plain text."""
        from generalist.report.layouts import plain_text  # which lays out comparisons, and so imports this file

        return plain_text(self)

    def ranks(self, column: Column) -> tuple[Rank, ...]:
        """One for each run; the paper takes no part."""
        values = [row.values.get(column.name) for row in self.rows]
        return ranks(values, lower_is_better=column.lower_is_better, digits=column.digits)

    def record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "suite": self.suite,
            "data": self.data,
            "images": self.images,
            "threats": list(self.threats),
            "columns": [column.name for column in self.columns],
            "paper": self.paper or None,
            "runs": [
                {
                    "name": row.name,
                    "recipe": row.recipe,
                    "method": row.method,
                    "run": row.run,
                    "selected_by": row.selected_by,
                    "accuracy": {name: value for name, value in row.values.items() if name != COST},
                    "cost": row.values.get(COST),
                    "paper": dict(row.paper),
                }
                for row in self.rows
            ],
            "paper_only": [{"name": row.name, "paper": dict(row.paper)} for row in self.paper_rows],
            "notes": list(self.notes),
        }


def ranks(values: Sequence[float | None], *, lower_is_better: bool = False, digits: int = 2) -> tuple[Rank, ...]:
    """Ties share a rank, and the next value after a tie is the second best; a lone value has no rank."""
    rounded = [None if value is None else round(value, digits) for value in values]
    measured = [value for value in rounded if value is not None]
    order = sorted(set(measured), reverse=not lower_is_better)[:2] if len(measured) > 1 else []
    places: dict[float | None, Rank] = dict(zip(order, (1, 2), strict=False))
    return tuple(places.get(value, 0) for value in rounded)


def make_comparison(entries: Sequence[Entry], *, paper: PaperTable | None = None) -> Comparison:
    """Runs that were evaluated alike, as rows; with a paper's table its values too."""
    check_alike(entries)
    first = entries[0]
    attacks = list(next(iter(first.record["accuracy"].values())))
    robust = [Column(f"{attack} {threat}", threat, attack) for threat in first.threats for attack in attacks]
    unions = [Column(union, union, attacks[-1]) for union in UNIONS if union in first.record["accuracy"]]
    columns = [Column(NATURAL), *robust, *unions]
    rows = tuple(_row(entry, columns, _paper_metrics(entry, paper)) for entry in entries)
    if any(entry.seconds is not None for entry in entries):
        columns.append(Column(COST, lower_is_better=True, digits=1))
    return Comparison(
        suite=first.record["suite"],
        data=first.data,
        images=first.record["images"],
        threats=tuple(first.threats),
        columns=tuple(columns),
        robust=unions[0] if unions else robust[-1],
        rows=rows,
        paper=paper.title if paper else "",
        paper_rows=tuple(_paper_rows(entries, columns, paper)) if paper else (),
        notes=tuple(_notes(entries, paper)),
    )


def check_alike(entries: Sequence[Entry]) -> None:
    """Refuse runs whose figures are not about the same images and attacks."""
    aspects: dict[str, Callable[[Entry], Any]] = {
        "data": lambda entry: entry.data,
        "numbers of images": lambda entry: entry.record["images"],
        "images": lambda entry: entry.record["examples"],
        "threats": lambda entry: sorted(entry.threats),
        "attacks": lambda entry: entry.record["stages"],
    }
    first = entries[0]
    for entry in entries[1:]:
        for aspect, read in aspects.items():
            ours, theirs = read(first), read(entry)
            if ours != theirs:
                shown = aspect not in ("images", "attacks")  # too long for a line
                which = f": {_listed(ours)} and {_listed(theirs)}" if shown else ""
                both = f"{first.name} and {entry.name}"
                raise UserError(f"{both} cannot be compared, they were evaluated on different {aspect}{which}")


def _listed(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def distinct_names(names: Sequence[str], paths: Sequence[PurePath]) -> list[str]:
    """Names as they are where they differ; equal ones with the shortest part of their paths that tells them apart."""
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [index for index, other in enumerate(names) if other == name]
        for index, part in zip(places, _telling_parts([paths[index] for index in places]), strict=True):
            result[index] = f"{name} ({part})"
    return result


def _telling_parts(paths: Sequence[PurePath]) -> list[str]:
    depth = max(len(path.parts) for path in paths)
    single = [[path.parts[-i] if i <= len(path.parts) else "" for path in paths] for i in range(1, depth + 1)]
    several = [["/".join(path.parts[-i:]) for path in paths] for i in range(2, depth + 1)]
    telling = (parts for parts in [*single, *several] if len(set(parts)) == len(parts) and all(parts))
    return next(telling, [str(path) for path in paths])


def _row(entry: Entry, columns: Sequence[Column], metrics: Mapping[str, float]) -> Row:
    accuracy = entry.record["accuracy"]
    values = {NATURAL: entry.record["natural"]}
    values |= {column.name: accuracy[column.threat][column.attack] for column in columns if column.threat}
    if entry.seconds is not None:
        values[COST] = entry.seconds
    return Row(
        name=entry.name,
        values=values,
        paper=_paper_values(entry, columns, metrics),
        recipe=entry.recipe,
        method=entry.method,
        run=entry.run,
        selected_by=entry.selected_by,
    )


def _paper_metrics(entry: Entry, paper: PaperTable | None) -> Mapping[str, float]:
    from_paper = paper.rows.get((entry.data, entry.network or ""), {}) if paper else {}
    return next((from_paper[name] for name in entry.paper_names if name in from_paper), {})


def _paper_values(entry: Entry, columns: Sequence[Column], metrics: Mapping[str, float]) -> dict[str, float]:
    """The paper's metrics by the column that measures the same."""
    return paper_values(columns, metrics, data=entry.data, suite=entry.record["suite"], threats=entry.threats)


def paper_values(
    columns: Sequence[Column], metrics: Mapping[str, float], *, data: str, suite: str, threats: Sequence[str]
) -> dict[str, float]:
    """The metrics that a paper prints of a method, by the column of ours that measures the same."""
    values = {}
    for column in columns:
        names: tuple[str, ...] = (NATURAL,) if column.name == NATURAL else ()
        if column.threat:
            names = metric_names(data, suite, threats, threat=column.threat, attack=column.attack)
        found = [metrics[name] for name in names if name in metrics]
        if found:
            values[column.name] = found[0]
    return values


def _paper_rows(entries: Sequence[Entry], columns: Sequence[Column], paper: PaperTable) -> list[Row]:
    """The paper's methods that no run covers, for the networks of the runs."""
    networks = list(dict.fromkeys(entry.network for entry in entries if entry.network))
    rows = []
    for network in networks:
        like = next(entry for entry in entries if entry.network == network)
        covered = {name for entry in entries if entry.network == network for name in entry.paper_names}
        for method, metrics in paper.rows.get((like.data, network), {}).items():
            values = _paper_values(like, columns, metrics)
            if method not in covered and values:
                rows.append(Row(f"{method}, {network}" if len(networks) > 1 else method, paper=values))
    return rows


def entry_warnings(entries: Sequence[Entry]) -> list[str]:
    """What to beware of in the figures of runs, whatever they are compared by."""
    chosen = [entry.name for entry in entries if entry.selected_by == "test"]
    notes = []
    if chosen:
        notes.append(f"warning: checkpoint selected on the test split, so its figures flatter: {', '.join(chosen)}")
    old = [entry.name for entry in entries if entry.outdated]
    if old:
        notes.append(f"warning: its model is not the one that was evaluated, evaluate it again: {', '.join(old)}")
    return notes


def _notes(entries: Sequence[Entry], paper: PaperTable | None) -> list[str]:
    notes = entry_warnings(entries)
    if paper is None:
        return notes
    matched = [entry for entry in entries if (entry.data, entry.network or "") in paper.rows]
    if not matched:
        return [
            *notes,
            f"nothing to put beside the runs in {paper.title}: it is about {paper.about()}",
        ]
    data = matched[0].data
    theirs = {norm: f"{norm}:{eps}" for norm, eps in RADII.get(data, {}).items()}
    other = [threat for threat in matched[0].threats if theirs.get(threat.partition(":")[0], threat) != threat]
    if other:
        ours, papers = " ".join(other), " ".join(theirs.values())
        notes.append(f"no robust accuracy of the paper stands beside {ours}: it attacks {data} with {papers}")
    return notes
