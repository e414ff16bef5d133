"""The result of a study: mean ± deviation over seeds, differences from a baseline, the paper's value beside ours."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from generalist.report.comparison import Column, Rank, ranks
from generalist.report.layouts import MISSING, escape_latex, escape_markdown


@dataclass(frozen=True)
class Spread:
    """A mean, and what is uncertain about it: the deviation over seeds, or half of a 95 % interval over images."""

    value: float
    margin: float | None = None

    @classmethod
    def over_seeds(cls, values: Sequence[float]) -> "Spread":
        return cls(mean(values), stdev(values) if len(values) > 1 else None)

    def show(self, digits: int, *, sign: str = "") -> str:
        beside = "" if self.margin is None else f" ± {self.margin:.{digits}f}"
        return f"{self.value:{sign}.{digits}f}{beside}"


@dataclass(frozen=True)
class ResultRow:
    """One row: by column the figures of its seeds, the paper's value, and the difference from the baseline.

    `values` are those of the grid, by field. `missing` says why there is nothing, seed by seed. `classes` has the mean
    accuracy of each class, by measure.
    """

    label: str
    group: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, Spread] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    classes: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    runs: Mapping[int, str] = field(default_factory=dict)

    def spread(self, column: str) -> Spread | None:
        """Over the seeds that are there."""
        found = self.figures.get(column)
        return Spread.over_seeds(list(found.values())) if found else None


@dataclass(frozen=True)
class StudyTable:
    """What a study found, so far."""

    name: str
    description: str
    reference: str
    about: str
    seeds: tuple[int, ...]
    columns: tuple[Column, ...]
    rows: tuple[ResultRow, ...]
    baseline: str | None = None
    paper: str = ""
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return plain_text(self)

    @property
    def finished(self) -> bool:
        return not any(row.missing for row in self.rows)

    def record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "study": self.name,
            "description": self.description,
            "reference": self.reference,
            "about": self.about,
            "seeds": list(self.seeds),
            "columns": [column.name for column in self.columns],
            "baseline": self.baseline,
            "paper": self.paper or None,
            "rows": [_row_record(row) for row in self.rows],
            "notes": list(self.notes),
        }


def _row_record(row: ResultRow) -> dict[str, Any]:
    spreads = {column: row.spread(column) for column in row.figures}
    return {
        "label": row.label,
        "group": row.group,
        "values": dict(row.values),
        "figures": {column: {str(seed): value for seed, value in of.items()} for column, of in row.figures.items()},
        "mean": {column: round(spread.value, 4) for column, spread in spreads.items() if spread},
        "sd": {column: round(s.margin, 4) for column, s in spreads.items() if s and s.margin is not None},
        "difference": {
            column: {"points": round(change.value, 4), "margin": _rounded(change.margin)}
            for column, change in row.changes.items()
        },
        "paper": dict(row.paper),
        "missing": {str(seed): why for seed, why in row.missing.items()},
        "classes": {measure: list(values) for measure, values in row.classes.items()},
        "runs": {str(seed): folder for seed, folder in row.runs.items()},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def caption(table: StudyTable, *, best: str, second: str) -> list[str]:
    """What the figures are, how the marks read, and what to beware of; a line each."""
    several = len(table.seeds) > 1
    spread = ", mean ± standard deviation over the seeds" if several else ""
    lines = [f"{table.about}; seeds {', '.join(map(str, table.seeds))}{spread}"]
    if len(table.rows) > 1:
        lines.append(f"{best} best of the column, {second} second best; ties share a mark")
    if any(row.paper for row in table.rows):
        lines.append(f"in parentheses: {table.paper}")
    return [*lines, *table.notes]


def _difference_caption(table: StudyTable) -> str:
    how = "standard deviation over the seeds" if len(table.seeds) > 1 else "95 % interval over the images"
    return f"difference from {table.baseline}, paired; ± {how}"


def _ranked(table: StudyTable, column: Column) -> tuple[Rank, ...]:
    means = [None if (spread := row.spread(column.name)) is None else spread.value for row in table.rows]
    return ranks(means, lower_is_better=column.lower_is_better, digits=column.digits)


def _grid(table: StudyTable, styles: Sequence[str], escaped: Callable[[str], str]) -> list[list[str]]:
    """Head and rows in the form of the paper's table."""
    grouped = any(row.group for row in table.rows)
    lines = [[*(["group"] if grouped else []), "row", *(escaped(column.name) for column in table.columns)]]
    lines += [[*([escaped(row.group)] if grouped else []), escaped(row.label)] for row in table.rows]
    for column in table.columns:
        for line, row, rank in zip(lines[1:], table.rows, _ranked(table, column), strict=True):
            spread, theirs = row.spread(column.name), row.paper.get(column.name)
            own = _absent(row) if spread is None else styles[rank].format(spread.show(column.digits))
            line.append(own if theirs is None else f"{own} ({column.show(theirs)})")
    return lines


def _absent(row: ResultRow) -> str:
    reasons = list(row.missing.values())
    return reasons[0].partition(":")[0] if reasons else MISSING


def _differences(table: StudyTable, escaped: Callable[[str], str]) -> list[list[str]]:
    """Head and rows of the differences; nothing where there is no baseline."""
    if table.baseline is None or not any(row.changes for row in table.rows):
        return []
    columns = [column for column in table.columns if any(column.name in row.changes for row in table.rows)]
    grouped = any(row.group for row in table.rows)
    lines = [[*(["group"] if grouped else []), "row", *(escaped(column.name) for column in columns)]]
    for row in table.rows:
        if row.changes:
            cells = [row.changes.get(column.name) for column in columns]
            shown = [
                MISSING if cell is None else cell.show(column.digits, sign="+")
                for cell, column in zip(cells, columns, strict=True)
            ]
            lines.append([*([escaped(row.group)] if grouped else []), escaped(row.label), *shown])
    return lines


def plain_text(table: StudyTable) -> str:
    """Aligned by spaces, the marks as signs after the figures."""
    styles = ("{} ", "{}*", "{}+") if len(table.rows) > 1 else ("{}", "{}", "{}")
    parts = [f"{table.name}: {table.description}", *_aligned(_grid(table, styles, str))]
    parts += caption(table, best="*", second="+")
    differences = _differences(table, str)
    if differences:
        parts += ["", _difference_caption(table), *_aligned(differences)]
    return "\n".join(parts)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = lines[0].index("row")
    return [
        "  ".join(
            cell.ljust(width) if place <= left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def markdown_text(table: StudyTable) -> str:
    """The table in the form of the paper's, with its caption, then the differences."""
    title = f"**{escape_markdown(table.name)}**: {escape_markdown(table.description)}"
    where = f" ({escape_markdown(table.reference)})" if table.reference else ""
    parts = [f"{title}{where}", _markdown(_grid(table, ("{}", "**{}**", "<u>{}</u>"), escape_markdown))]
    notes = caption(table, best="Bold:", second="underlined:")
    parts.append("\n".join(f"- {escape_markdown(line)}" for line in notes))
    differences = _differences(table, escape_markdown)
    if differences:
        parts += [escape_markdown(_difference_caption(table)) + ":", _markdown(differences)]
    return "\n\n".join(parts) + "\n"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    left = lines[0].index("row") + 1
    rule = [*("---" for _ in range(left)), *("---:" for _ in lines[0][left:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def latex_text(table: StudyTable) -> str:
    """Tabulars for booktabs; a rule between groups."""
    grid = _grid(table, ("{}", r"\textbf{{{}}}", r"\underline{{{}}}"), escape_latex)
    notes = caption(table, best="bold:", second="underlined:")
    parts = [*(f"% {line}" for line in (f"{table.name}: {table.description}", *notes)), *_tabular(grid)]
    differences = _differences(table, escape_latex)
    if differences:
        parts += ["", f"% {_difference_caption(table)}", *_tabular(differences)]
    return "\n".join([*parts, ""])


def _tabular(lines: Sequence[Sequence[str]]) -> list[str]:
    left = lines[0].index("row") + 1
    body, before = [], None
    for line in lines[1:]:
        if left > 1 and before not in (None, line[0]):
            body.append(r"\midrule")
        before = line[0]
        body.append(f"{' & '.join(line)} \\\\".replace("±", r"$\pm$"))
    return [
        rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(lines[0]) - left)}}}",
        r"\toprule",
        f"{' & '.join(lines[0])} \\\\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def csv_text(table: StudyTable) -> str:
    """One row per row and column of the study, plain numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [f"seed {seed}" for seed in table.seeds]
    writer.writerow(
        ["group", "row", "column", "mean", "sd", "seeds", "paper", "difference", "margin", *names, "missing"]
    )
    for row in table.rows:
        why = "; ".join(f"seed {seed}: {reason}" for seed, reason in row.missing.items())
        for column in table.columns:
            spread, change, figures = (
                row.spread(column.name),
                row.changes.get(column.name),
                row.figures.get(column.name, {}),
            )
            writer.writerow(
                [
                    row.group,
                    row.label,
                    column.name,
                    *_numbers(spread),
                    len(figures),
                    row.paper.get(column.name, ""),
                    *_numbers(change),
                    *(figures.get(seed, "") for seed in table.seeds),
                    why,
                ]
            )
    return file.getvalue()


def _numbers(spread: Spread | None) -> tuple[float | str, float | str]:
    if spread is None:
        return "", ""
    margin = "" if spread.margin is None or math.isnan(spread.margin) else round(spread.margin, 4)
    return round(spread.value, 4), margin
