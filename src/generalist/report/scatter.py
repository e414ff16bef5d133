"""The trade-off of several runs in one picture: natural accuracy against robust accuracy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from generalist.evaluation.fronts import pareto_front
from generalist.report.comparison import NATURAL, UNIONS, Comparison, Row
from generalist.report.figures import GLOBAL, PALETTE, PAPER, picture

OURS, GENERALIST, THEIRS = PALETTE[0], PALETTE[1], "#777777"
GROUPS = {GENERALIST: "runs of Generalist", OURS: "runs of other methods"}
MARKER = 4.5


@dataclass(frozen=True)
class Point:
    label: str
    x: float
    y: float
    colour: str
    hollow: bool = False


def draw_scatter(comparison: Comparison, *, kind: str = "png") -> bytes:
    """A labelled point per run, the paper's hollow, our Pareto front as a light line; `kind` is png or svg."""
    ours, theirs, pairs = _points(comparison)
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        axis = figure.subplots()
        axis.margins(0.1)
        floor = axis_floor([point.y for point in (*ours, *theirs)])
        shown, shown_theirs = ([lifted(point, floor) for point in points] for points in (ours, theirs))
        for i, (run, paper) in enumerate(pairs):
            label = None if i else "the same method"
            axis.plot([run.x, paper.x], [run.y, paper.y], color=THEIRS, lw=0.6, ls=(0, (1, 1.5)), zorder=1, label=label)
        front = pareto_front([(point.x, point.y) for point in shown if point.y != floor])  # no line to where none is
        if len(front) > 1:
            axis.plot(*zip(*front, strict=True), color=GLOBAL, alpha=0.2, lw=2, zorder=0, label="Pareto front")
        for colour, label in GROUPS.items():
            _mark(axis, [point for point in shown if point.colour == colour], label=label, floor=floor)
        _mark(axis, shown_theirs, label=comparison.paper, floor=floor)
        if floor is not None:
            top = max(point.y for point in (*ours, *theirs))
            axis.set_ylim(floor, top + 0.1 * (top - floor))
        axis.set(xlim=within_percent(axis.get_xlim()), ylim=within_percent(axis.get_ylim()))
        robust = comparison.robust
        of = f"{robust.threat} of {robust.attack}" if robust.threat in UNIONS else f"accuracy under {robust.name}"
        axis.set(xlabel="natural accuracy (%)", ylabel=f"{of} (%)")
        selected = ", ".join(sorted({row.selected for row in comparison.rows}))
        figure.suptitle(f"{comparison.data}, {comparison.images} images of the test split, select: {selected}")
        figure.legend(loc="outside lower center", ncols=3)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # what is placed now must not move the axes again
        place_labels(axis, [point for point in (*shown, *shown_theirs) if point.label], [*shown, *shown_theirs])
        return picture(figure, kind)


def _mark(axis: Axes, points: Sequence[Point], *, label: str, floor: float | None) -> None:
    for i, point in enumerate(sorted(points, key=lambda point: point.y == floor)):  # the first one is in the legend
        axis.plot(
            point.x, point.y, "v" if point.y == floor else "o", ms=MARKER, mec=point.colour, mew=0.9,
            mfc="white" if point.hollow else point.colour, label=None if i else label,
            zorder=3 - point.hollow, clip_on=False,
        )  # fmt: skip


def within_percent(limits: tuple[float, float]) -> tuple[float, float]:
    """No axis goes beyond what an accuracy can be; markers at its end are drawn whole."""
    low, high = limits
    return max(0.0, low), min(100.0, high)


def axis_floor(values: Sequence[float]) -> float | None:
    """Where the axis ends, if a few points far below would press all others together."""
    order = sorted(values)
    for below, above in pairwise(range(len(order) - 2)):
        span = order[-1] - order[above]
        if order[above] - order[below] > max(span, 1):
            return order[above] - 0.15 * max(span, 1)
    return None


def lifted(point: Point, floor: float | None) -> Point:
    """A point below the floor stands on it and says its height."""
    if floor is None or point.y > floor:
        return point
    return replace(point, y=floor, label=f"{point.label} {point.y:.2f}" if point.label else "")


def _points(comparison: Comparison) -> tuple[list[Point], list[Point], list[tuple[Point, Point]]]:
    """Ours, the paper's (without a label where a line leads to our run), and the lines."""
    ours, theirs, pairs = [], [], []
    robust = comparison.robust.name
    for row, label in zip(comparison.rows, _short_names(comparison.rows), strict=True):
        colour = GENERALIST if "generalist" in (row.method or row.recipe) else OURS
        point = Point(label, row.values[NATURAL], row.values[robust], colour)
        ours.append(point)
        if NATURAL in row.paper and robust in row.paper:
            theirs.append(Point("", row.paper[NATURAL], row.paper[robust], THEIRS, hollow=True))
            pairs.append((point, theirs[-1]))
    for row in comparison.paper_rows:
        if NATURAL in row.paper and robust in row.paper:
            theirs.append(Point(row.name, row.paper[NATURAL], row.paper[robust], THEIRS, hollow=True))
    return ours, theirs, pairs


def _short_names(rows: Sequence[Row]) -> list[str]:
    """Without the setting, where all share it, or else without the parts that all names begin with."""
    settings = {row.recipe.removesuffix("-code").removesuffix(row.method or "") for row in rows}
    if len(settings) == 1 and all(row.method for row in rows):
        prefix = settings.pop()
    else:
        parts = [row.name.split("-")[:-1] for row in rows] if len(rows) > 1 else [[]]
        shared = takewhile(lambda heads: len(set(heads)) == 1, zip(*parts, strict=False))
        prefix = "".join(f"{heads[0]}-" for heads in shared)
    return [row.name.removeprefix(prefix) for row in rows]


@dataclass(frozen=True, slots=True)
class _Box:
    """In pixels; far faster than matplotlib's own, which thousands of tries need."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> "_Box":
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    @property
    def area(self) -> float:
        return (self.x1 - self.x0) * (self.y1 - self.y0)

    def shared(self, other: "_Box") -> float:
        """The area of both."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return width * height if width > 0 and height > 0 else 0.0

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        return min(max(x, self.x0), self.x1), min(max(y, self.y0), self.y1)


def place_labels(axis: Axes, labelled: Sequence[Point], points: Sequence[Point]) -> None:
    """Each label at the free place nearest to its point, the most crowded first; a thin line where it is far."""
    figure = axis.get_figure()
    assert isinstance(figure, Figure)
    pixels, inch = figure.dpi / 72, figure.dpi
    inches = figure.dpi_scale_trans  # an SVG has another number of pixels
    marks = {point: tuple(map(float, axis.transData.transform((point.x, point.y)))) for point in points}
    dots = [_Box.around(x, y, 2 * MARKER * pixels, 2 * MARKER * pixels) for x, y in marks.values()]
    frame, page = _Box(*axis.get_window_extent().extents), _Box(*figure.bbox.extents)
    labels: list[_Box] = []
    lines: list[_Box] = []

    def crowd(point: Point) -> float:
        x, y = marks[point]
        return -sum(1 / (20 * pixels + math.hypot(x - a, y - b)) for a, b in marks.values())

    def cost(box: _Box, x: float, y: float) -> float:
        """What is cut off weighs most; then what is hidden or outside, a crossed label, the way to the point."""
        hidden = sum(box.shared(other) for other in (*dots, *labels, *lines)) / box.area
        outside = 1 - box.shared(frame) / box.area
        cut = 1 - box.shared(page) / box.area
        crossed = any(other.nearest(*step) == step for step in _way(box, x, y) for other in labels)
        return 100_000 * cut + 5000 * (hidden + outside) + 300 * crossed + math.dist(box.nearest(x, y), (x, y)) / pixels

    for point in sorted(labelled, key=crowd):
        x, y = marks[point]
        text = axis.text(0, 0, point.label, fontsize=7, color=point.colour, transform=inches, ha="center", va="center")
        extent = text.get_window_extent()
        places = _places(x, y, extent.width, extent.height, pixels)
        place = min(places, key=lambda box: cost(box, x, y))
        text.set_position(((place.x0 + place.x1) / 2 / inch, (place.y0 + place.y1) / 2 / inch))
        labels.append(place)
        way = _way(place, x, y)
        if math.dist(way[0], way[-1]) > 8 * pixels:
            lines += [_Box.around(a, b, pixels, pixels) for a, b in way[1:-1]]
            ends = [(a / inch, b / inch) for a, b in (way[0], way[-1])]
            axis.add_patch(FancyArrowPatch(*ends, arrowstyle="-", lw=0.4, color=point.colour, transform=inches))


def _places(x: float, y: float, width: float, height: float, pixels: float) -> Iterator[_Box]:
    """Boxes around a point, the near ones first; the right side before the left, above before below."""
    for distance in (5, 9, 14, 20, 28, 38, 50):
        for angle in (0, 180, 90, 270, 45, 315, 135, 225, 22, 338, 158, 202, 68, 112, 248, 292):
            right, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            reach = distance * pixels
            yield _Box.around(x + right * (reach + width / 2), y + up * (reach + height / 2), width, height)


def _way(box: _Box, x: float, y: float) -> list[tuple[float, float]]:
    """From a point straight to the nearest point of a box, in steps."""
    a, b = box.nearest(x, y)
    return [(x + (a - x) * i / 8, y + (b - y) * i / 8) for i in range(9)]
