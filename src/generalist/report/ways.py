"""The way between learners: loss and accuracy along the line between each two, and over the triangle of three."""

from collections.abc import Callable, Sequence
from itertools import combinations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import RegularPolygon

from generalist.evaluation import MixturePoint
from generalist.evaluation.glance import NATURAL
from generalist.report import figures
from generalist.report.figures import GREY, PAPER, pictures, pretty_threat

COLOURS = ("#5F6870", "#0072B2", "#B84A00", "#5D3A9B")
"""Of the measures: unattacked, then the threats."""
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
MOST_LINES = 6
"""Of so many pairs of learners a figure shows the lines."""
READABLE = 66
"""Up to so many tiles of a triangle have their value written on them."""
LOSS, ACCURACY = "cross-entropy", "accuracy (%)"

Value = Callable[[MixturePoint, str], float]


def way(points: Sequence[MixturePoint], a: str, b: str) -> list[MixturePoint]:
    """The mixtures of two endpoints alone, all modules alike, from a to b and beyond; none if an end is missing."""
    along = [point for point in points if not point.modules and set(point.mixture.involved) <= {a, b}]
    ends = {point.mixture.endpoint for point in along}
    return sorted(along, key=lambda point: point.weights[b]) if {a, b} <= ends and len(along) > 2 else []


def draw_ways(points: Sequence[MixturePoint], *, title: str) -> dict[str, bytes]:
    """A row of lines and, of three endpoints, a row of triangles, for the loss and for the accuracy.

    Args:
        points: Of a dial, with their losses.
        title: Above all of it.

    Returns:
        The same picture by file ending, as PNG and as SVG; nothing where no two endpoints have a mixture between them.
    """
    names = list(points[0].weights)
    pairs = [(a, b) for a, b in combinations(names, 2) if way(points, a, b)][:MOST_LINES]
    measures = [NATURAL, *points[0].robust]
    tiled = len(names) == 3
    rows: list[tuple[str, Value]] = [(ACCURACY, _accuracy)]
    if all(point.glance.losses for point in points):
        rows.insert(0, (LOSS, lambda point, measure: point.glance.losses[measure]))
    if not pairs:
        return {}
    with matplotlib.rc_context({**PAPER, "svg.hashsalt": "generalist"}):
        wide = max(len(pairs), len(measures) if tiled else 0)
        height = 2.5 * len(rows) + (2.7 * len(rows) if tiled else 0)
        figure = figures.Figure(figsize=(max(4.6, 3.0 * wide), height + 0.5), layout="constrained")
        parts = figure.subfigures(len(rows) * (2 if tiled else 1), 1, squeeze=False)[:, 0]
        for place, (unit, value) in enumerate(rows):
            _lines(parts[place * (2 if tiled else 1)], points, pairs, measures, unit, value)
            if tiled:
                _triangles(parts[2 * place + 1], points, names, measures, unit, value)
        figure.suptitle(title)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # which takes longer than both files
        return pictures(figure)


def _accuracy(point: MixturePoint, measure: str) -> float:
    return point.natural if measure == NATURAL else point.robust[measure]


def _name(measure: str) -> str:
    return "unattacked" if measure == NATURAL else pretty_threat(measure)


def _lines(
    part: SubFigure,
    points: Sequence[MixturePoint],
    pairs: Sequence[tuple[str, str]],
    measures: Sequence[str],
    unit: str,
    value: Value,
) -> None:
    """A panel per pair; dotted the straight line between the ends."""
    axes: list[Axes] = list(part.subplots(1, len(pairs), squeeze=False)[0])
    for axis, (a, b) in zip(axes, pairs, strict=True):
        along = way(points, a, b)
        shares = [point.weights[b] for point in along]
        ends = {point.mixture.endpoint: point for point in along}
        for place, measure in enumerate(measures):
            colour = COLOURS[place % len(COLOURS)]
            axis.plot(shares, [value(point, measure) for point in along], "o-", color=colour, label=_name(measure))
            axis.plot([0, 1], [value(ends[a], measure), value(ends[b], measure)], ":", color=colour, lw=0.9)
        if max(shares) > 1:
            axis.axvline(1, color=GREY, lw=0.6, ls=(0, (4, 2)))
        axis.set(title=f"{a} → {b}", xlabel=f"weight of {b}, the rest {a}")
        if unit == LOSS:
            axis.set_ylim(bottom=0)
    axes[0].set_ylabel(unit)
    handles, labels = axes[0].get_legend_handles_labels()
    part.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)


def _triangles(
    part: SubFigure,
    points: Sequence[MixturePoint],
    names: Sequence[str],
    measures: Sequence[str],
    unit: str,
    value: Value,
) -> None:
    """A panel per measure, a tile per mixture, the better the bluer; learners have an edge, those beyond are small."""
    alike = [point for point in points if not point.modules]
    weights = np.array([[point.weights[name] for name in names] for point in alike])
    places = weights @ CORNERS
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    radius = float(apart[apart > 1e-9].min()) / 3**0.5
    axes: list[Axes] = list(part.subplots(1, len(measures), squeeze=False)[0])
    for axis, measure in zip(axes, measures, strict=True):
        values = np.array([value(point, measure) for point in alike])
        span = max(float(np.ptp(values)), 1e-9)
        good = (values - values.min()) / span if unit == ACCURACY else (values.max() - values) / span
        for point, (x, y), share, figure in zip(alike, places.tolist(), good, values, strict=True):
            beyond, end = min(point.weights.values()) < 0, point.is_endpoint
            size = radius * (0.86 if beyond else 0.93 if end else 0.97)
            fill = tuple(1 - (0.08 + 0.8 * float(share)) * (1 - c) for c in (0.357, 0.624, 0.816))
            edge = {"ec": "black", "lw": 1.2} if end else {"ec": "none"}
            axis.add_patch(RegularPolygon((x, y), 6, radius=size, fc=fill, in_layout=False, **edge))
            if len(alike) <= READABLE:
                small = 7 if len(alike) <= 21 else 5
                words = f"{figure:.{1 if unit == ACCURACY else 2}f}"
                axis.text(x, y, words, ha="center", va="center", fontsize=small, in_layout=False)
        for name, corner in zip(names, CORNERS, strict=True):
            above = corner[1] > 0
            height = places[:, 1].max() + 1.2 * radius if above else places[:, 1].min() - 1.2 * radius
            axis.text(corner[0], height, name, ha="center", va="bottom" if above else "top", fontsize=8)
        reach = radius * 1.3
        axis.set(xlim=(places[:, 0].min() - reach, places[:, 0].max() + reach))
        axis.set(ylim=(places[:, 1].min() - 2.6 * radius, places[:, 1].max() + 2.6 * radius), aspect="equal")
        axis.set_title(f"{unit}, {_name(measure)}", fontsize=9)
        axis.set_axis_off()
