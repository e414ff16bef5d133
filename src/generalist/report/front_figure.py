"""Fronts in one picture: natural against robust accuracy, a colour per front, a line per seed."""

from itertools import pairwise

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from generalist.core.names import UNION
from generalist.evaluation.fronts import Front
from generalist.report.figures import DASHES, GREY, PALETTE, PAPER, pictures, pretty_threat
from generalist.report.fronts import FrontComparison
from generalist.report.scatter import Point, axis_floor, lifted, place_labels, within_percent

MOST_LABELS = 16
STEPS = 12
MARKERS = "osD^PX*h"
"""Beside the colour, so that nobody needs colours to tell fronts apart."""


def draw_fronts(found: FrontComparison) -> dict[str, bytes]:
    """The same picture by file ending, as PNG and as SVG. Hollow: dominated within its own front."""
    pairs = [point.pair for front in found.fronts for point in front.points]
    floor = _floor(found)
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(6.4, 5.0), layout="constrained")
        axis = figure.subplots()
        axis.margins(0.1)
        dots, on_lines = list[Point](), list[Point]()
        for number, name in enumerate(found.names):
            for index, front in enumerate(found.of(name)):
                dots += _draw(axis, front, number, index, floor)
                on_lines += _along(front)
        if any(dot.hollow for dot in dots):
            axis.plot([], [], "o", ms=5, mec=GREY, mfc="white", ls="none", label="dominated within its own front")
        if floor is not None:
            top = max(robust for _, robust in pairs)
            axis.set_ylim(floor, top + 0.1 * (top - floor))
        axis.set(xlim=within_percent(axis.get_xlim()), ylim=within_percent(axis.get_ylim()))
        for level in found.levels:
            axis.axvline(level, color=GREY, lw=0.7, ls=":", zorder=0)
        under = UNION if found.threat == UNION else pretty_threat(found.threat)
        axis.set(xlabel="natural accuracy (%)", ylabel=f"robust accuracy (%), {under}, {found.suite}")
        listed = ", ".join(map(str, found.seeds))
        seeds = f"seeds {listed}, a line each" if len(found.seeds) > 1 else f"seed {listed}"
        figure.suptitle(f"{found.data}: {found.images} images of the {found.split} split, {seeds}")
        figure.legend(loc="outside lower center", ncols=2)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # what is placed now must not move the axes again
        low = [dot for dot in dots if dot.y == floor]  # these say how far below they are
        few = len(found.seeds) == 1 and len(dots) <= MOST_LABELS
        place_labels(axis, dots if few else low[:MOST_LABELS], [*dots, *on_lines])
        return pictures(figure)


def _floor(found: FrontComparison) -> float | None:
    """Where the axis ends, if lone models far below would press the fronts together."""
    lines = [point.pair[1] for front in found.fronts if len(front.kept) > 1 for point in front.points]
    alone = [point.pair[1] for front in found.fronts if len(front.kept) == 1 for point in front.points]
    if not lines:
        return axis_floor(alone)
    span = max(1.0, max(lines) - min(lines))
    return min(lines) - 0.15 * span if min([*alone, *lines]) < min(lines) - span / 2 else None


def _along(front: Front) -> list[Point]:
    """Places on the line of a front that labels keep clear of."""
    found = []
    for (a, b), (c, d) in pairwise(point.pair for point in front.kept):
        found += [Point("", a + (c - a) * i / STEPS, b + (d - b) * i / STEPS, GREY) for i in range(1, STEPS)]
    return found


def _draw(axis: Axes, front: Front, number: int, index: int, floor: float | None) -> list[Point]:
    """The line through a front and its points; a label in the legend for its first seed."""
    colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    line = [point.pair for point in front.kept]
    look = {"color": colour, "ls": DASHES[index % len(DASHES)], "lw": 1.3, "alpha": 0.8}
    if len(line) > 1:
        axis.plot(*zip(*line, strict=True), zorder=2, **look)
    if not index:
        axis.plot([], [], marker, ms=5, mec=colour, mfc=colour, label=front.name)  # for the legend
    dots = []
    for point in front.points:
        name = front.name if point.name in ("", front.name) else point.name
        hollow = not any(point is kept for kept in front.kept)
        dot = lifted(Point(name, *point.pair, colour, hollow), floor)
        dots.append(dot)
        axis.plot(
            dot.x, dot.y, "v" if dot.y == floor else marker, ms=5, mec=colour, mew=0.9, ls="none", zorder=3,
            mfc="white" if hollow else colour, clip_on=False,
        )  # fmt: skip
    return dots
