"""The figure of a study: lines over a field, bars by row, one column against another, or bars by class."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from generalist.core.names import MEAN, UNION
from generalist.report.comparison import NATURAL, Column
from generalist.report.figures import DASHES, LEARNERS, PALETTE, PAPER, pictures, pretty_threat
from generalist.report.scatter import THEIRS, Point, pareto_front, place_labels, within_percent
from generalist.report.study_table import ResultRow, StudyTable

COSTS = ("minutes", "cost in AT runs", "memory MiB")
"""Columns that are no accuracies."""
OTHERS = {"severity 5": LEARNERS["corrupted"], "all severities": LEARNERS["extremes"], "sequences": LEARNERS["norms"]}
MOST_ROWS = 40
"""More rows than these are told apart by no figure; the table has them all."""


@dataclass(frozen=True)
class Panel:
    """Rows of one group with the columns on the axes; `x` is a field of the grid, or a column for a scatter."""

    y: tuple[Column, ...]
    x: Any = None
    group: str | None = None
    title: str = ""


def draw_study(table: StudyTable, *, kind: str, panels: Sequence[Panel], xlabel: str = "") -> dict[str, bytes]:
    """The figure by file ending, as PNG and as SVG."""
    draw = {"lines": _lines, "bars": _bars, "scatter": _scatter, "classes": _classes}[kind]
    with matplotlib.rc_context({**PAPER, "svg.hashsalt": table.name}):
        down, across = _layout(kind, len(panels))
        wide, high = _size(kind, table, panels)
        figure = Figure(figsize=(wide * across, high * down + 1.0), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        figure.suptitle(textwrap.fill(_title(table), width=int(14 * wide * across)))
        for axis, panel in zip(axes, panels, strict=False):
            axis.set_title(panel.title or panel.group or "")
            draw(axis, _rows(table, panel), panel, Axis(xlabel, table.class_names, _labels(table)))
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        _legend(figure, axes[: len(panels)])
        if kind == "scatter":
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # what is placed now must not move the axes again
            for axis, panel in zip(axes, panels, strict=False):
                points = _points(_rows(table, panel), panel)
                place_labels(axis, [point for point in points if point.label], points)
        return pictures(figure)


@dataclass(frozen=True)
class Axis:
    """What all panels of a figure share."""

    xlabel: str
    class_names: tuple[str, ...]
    labels: tuple[str, ...]


def _labels(table: StudyTable) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.label for row in table.rows))


NO_BREAK = "\N{NO-BREAK SPACE}"


def _title(table: StudyTable) -> str:
    seeds = f"{len(table.seeds)} seeds" if len(table.seeds) > 1 else f"seed {table.seeds[0]}"
    return f"{table.name}: {table.description}, {seeds.replace(' ', NO_BREAK)}"


def _layout(kind: str, panels: int) -> tuple[int, int]:
    """Panels down and across."""
    if kind in ("bars", "classes"):
        across = 2 if panels > 3 else 1
        return -(-panels // across), across
    return 1, panels


def _size(kind: str, table: StudyTable, panels: Sequence[Panel]) -> tuple[float, float]:
    """Of one panel, in inches."""
    if kind == "bars":
        most = max(len(_rows(table, panel)) * (len(panel.y) + 1) for panel in panels)
        slanted = any(_slanted(_rows(table, panel)) for panel in panels)
        return min(12.0, max(6.0 if len(panels) < 4 else 4.6, 0.22 * most + 1.0)), 2.7 if slanted else 2.1
    if kind == "classes":
        most = max(len(_rows(table, panel)) + 1 for panel in panels) * len(table.class_names)
        return min(24.0, max(6.4, 0.14 * most + 1)), 1.9
    return max(4.4, 6.4 / len(panels)), 3.3


def _rows(table: StudyTable, panel: Panel) -> list[ResultRow]:
    return [row for row in table.rows if panel.group in (None, row.group)]


def _look(column: Column) -> dict[str, Any]:
    """One colour for natural accuracy and for each norm, as in the figures of runs; ours for what sums up."""
    if column.name == NATURAL:
        return {"color": LEARNERS["natural"]}
    if column.threat in (MEAN, UNION):
        return {"color": "#222222", "ls": DASHES[1 + (column.threat == UNION)]}
    others = {
        "severity 5": LEARNERS["corrupted"],
        "all severities": LEARNERS["extremes"],
        "sequences": LEARNERS["norms"],
    }
    return {"color": others.get(column.name) or LEARNERS.get(column.threat.partition(":")[0], THEIRS)}


def pretty_column(column: Column) -> str:
    """AA under ℓ∞, ε = 8/255"""
    if not column.threat or column.threat in (MEAN, UNION):
        return column.name
    return f"{column.attack}, {pretty_threat(column.threat)}"


def _unit(panel: Panel) -> str:
    return panel.y[0].name if panel.y[0].name in COSTS else "accuracy (%)"


def _number(value: Any) -> float | None:
    try:
        return float(Fraction(str(value)))
    except (ValueError, ZeroDivisionError):
        return None


def _lines(axis: Axes, rows: Sequence[ResultRow], panel: Panel, shared: Axis) -> None:
    """Over numbers where all values are numbers, else over the values in their order."""
    numbers = [_number(row.values.get(panel.x)) for row in rows]
    plain = all(number is not None for number in numbers)
    found = [number for number in numbers if number is not None]
    places = found if plain else [float(place) for place in range(len(rows))]
    order = sorted(range(len(rows)), key=places.__getitem__)
    for column in panel.y:
        spreads = {i: rows[i].spread(column.name) for i in order}
        xs = [places[i] for i, spread in spreads.items() if spread]
        ys = [spread.value for spread in spreads.values() if spread]
        errors = [spread.margin or 0.0 for spread in spreads.values() if spread]
        axis.errorbar(xs, ys, yerr=errors if any(errors) else None, marker="o", capsize=2, label=pretty_column(column),
                      **_look(column))  # fmt: skip
    axis.set_xticks(places, [row.values.get(panel.x, row.label) for row in rows])
    axis.set(xlabel=shared.xlabel or str(panel.x), ylabel=_unit(panel))


def _slanted(rows: Sequence[ResultRow]) -> bool:
    """Whether the labels are too long to stand side by side."""
    return sum(len(row.label) for row in rows) > 75


def _bars(axis: Axes, rows: Sequence[ResultRow], panel: Panel, shared: Axis) -> None:
    width = 0.8 / len(panel.y)
    for number, column in enumerate(panel.y):
        shift = (number - (len(panel.y) - 1) / 2) * width
        spreads = [(place, row.spread(column.name)) for place, row in enumerate(rows)]
        found = [(place + shift, spread) for place, spread in spreads if spread]
        errors = [spread.margin or 0.0 for _, spread in found]
        look = _look(column)
        axis.bar(
            [place for place, _ in found], [spread.value for _, spread in found], width=width * 0.94,
            label=pretty_column(column), color=look["color"], yerr=errors if any(errors) else None, capsize=2,
            alpha=1.0 if "ls" not in look else 0.6,
        )  # fmt: skip
        papers = [(place + shift, row.paper[column.name]) for place, row in enumerate(rows) if column.name in row.paper]
        if papers:
            axis.plot(*zip(*papers, strict=True), "_", color="black", ms=9, mew=1.2, label="the paper's", zorder=4)
    labels, long = [row.label for row in rows], _slanted(rows)
    axis.set_xticks(range(len(rows)), labels, rotation=30 if long else 0, ha="right" if long else "center")
    axis.set(ylabel=_unit(panel), ylim=(0, max(axis.get_ylim()[1], 0.01)))
    axis.set_xlim(-0.6, len(rows) - 0.4)
    axis.set_axisbelow(True)
    axis.grid(axis="x", visible=False)


def _points(rows: Sequence[ResultRow], panel: Panel) -> list[Point]:
    """Ours with their labels; the paper's hollow, without."""
    across, up = panel.x.name, panel.y[0].name
    groups = list(dict.fromkeys(row.group for row in rows))
    points = []
    for row in rows[:MOST_ROWS]:
        x, y = row.spread(across), row.spread(up)
        if x and y:
            points.append(Point(row.label, x.value, y.value, PALETTE[groups.index(row.group) % len(PALETTE)]))
        if across in row.paper and up in row.paper:
            points.append(Point("", row.paper[across], row.paper[up], THEIRS, hollow=True))
    return points


def _scatter(axis: Axes, rows: Sequence[ResultRow], panel: Panel, shared: Axis) -> None:
    points = _points(rows, panel)
    ours = [point for point in points if not point.hollow]
    axis.margins(0.12)
    front = pareto_front([(point.x, point.y) for point in ours])
    if len(front) > 1:
        axis.plot(*zip(*front, strict=True), color="#222222", alpha=0.2, lw=2, zorder=0, label="Pareto front")
    for row in rows[:MOST_ROWS]:
        x, y = row.spread(panel.x.name), row.spread(panel.y[0].name)
        if x and y and (x.margin or y.margin):
            axis.errorbar(x.value, y.value, xerr=x.margin, yerr=y.margin, color="#999999", lw=0.8, zorder=1)
    names = {PALETTE[i % len(PALETTE)]: name for i, name in enumerate(dict.fromkeys(row.group for row in rows))}
    for colour in dict.fromkeys(point.colour for point in points):
        some = [point for point in points if point.colour == colour]
        hollow = some[0].hollow
        axis.plot([point.x for point in some], [point.y for point in some], "o", ms=4.5, mec=colour,
                  mfc="white" if hollow else colour, label="the paper's" if hollow else names.get(colour) or "rows",
                  clip_on=False, zorder=2 if hollow else 3)  # fmt: skip
    axis.set(xlim=within_percent(axis.get_xlim()), ylim=within_percent(axis.get_ylim()))
    axis.set(xlabel=f"{pretty_column(panel.x)} (%)", ylabel=f"{pretty_column(panel.y[0])} (%)")


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    drawn: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        drawn |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in drawn}
    if drawn:
        figure.legend(list(drawn.values()), list(drawn), loc="outside lower center", ncols=min(4, len(drawn)))


def _classes(axis: Axes, rows: Sequence[ResultRow], panel: Panel, shared: Axis) -> None:
    """Bars by class; a row has one colour in all panels."""
    measure = panel.y[0]
    key = measure.threat or measure.name
    for place, row in enumerate(rows):
        shift = (place - (len(rows) - 1) / 2) * 0.8 / len(rows)
        number = shared.labels.index(row.label)
        axis.bar(
            [label + shift for label in range(len(shared.class_names))],
            [value or 0.0 for value in row.classes.get(key, [0.0] * len(shared.class_names))],
            width=0.8 / len(rows), label=row.label, color=PALETTE[number % len(PALETTE)],
            hatch="" if number < len(PALETTE) else "///", edgecolor="white", lw=0,
        )  # fmt: skip
    axis.set_title(f"{panel.title or panel.group or ''}: {pretty_column(measure)}".removeprefix(": "))
    axis.set(ylim=(0, 100), ylabel="accuracy (%)", xlim=(-0.6, len(shared.class_names) - 0.4))
    axis.set_xticks(range(len(shared.class_names)), shared.class_names)
    axis.set_axisbelow(True)
    axis.grid(axis="x", visible=False)
