"""Fronts in one picture: natural against robust accuracy, a colour per front, a line per seed."""

import io

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from generalist.core.names import UNION
from generalist.evaluation.fronts import Front
from generalist.report.classwise import COLOURS
from generalist.report.figures import DASHES, GREY, PAPER, pretty_threat
from generalist.report.fronts import FrontComparison
from generalist.report.scatter import DPI, Point, axis_floor, lifted, place_labels, within_percent

MOST_LABELS = 16
MARKERS = "osD^vPX*"
"""Beside the colour, so that nobody needs colours to tell fronts apart."""


def draw_fronts(found: FrontComparison) -> dict[str, bytes]:
    """The same picture by file ending, as PNG and as SVG. Hollow: dominated within its own front."""
    pairs = [point.pair for front in found.fronts for point in front.points]
    floor = axis_floor([robust for _, robust in pairs])
    with matplotlib.rc_context({**PAPER, "svg.hashsalt": "generalist"}):
        figure = Figure(figsize=(6.4, 5.0), layout="constrained", dpi=DPI)
        axis = figure.subplots()
        axis.margins(0.1)
        labelled, dots = [], list[Point]()
        for number, name in enumerate(found.names):
            for index, front in enumerate(found.of(name)):
                drawn = _draw(axis, front, number, index, floor)
                dots += drawn
                labelled += drawn if len(found.seeds) == 1 else []
        if floor is not None:
            top = max(robust for _, robust in pairs)
            axis.set_ylim(floor, top + 0.1 * (top - floor))
        axis.set(xlim=within_percent(axis.get_xlim()), ylim=within_percent(axis.get_ylim()))
        for level in found.levels:
            axis.axvline(level, color=GREY, lw=0.7, ls=":", zorder=0)
        under = UNION if found.threat == UNION else pretty_threat(found.threat)
        axis.set(xlabel="natural accuracy (%)", ylabel=f"robust accuracy (%), {under}, {found.suite}")
        seeds = f"seed{'s' if len(found.seeds) > 1 else ''} {', '.join(map(str, found.seeds))}"
        figure.suptitle(f"{found.data}: {found.images} images of the {found.split} split, {seeds}")
        figure.legend(loc="outside lower center", ncols=2)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # what is placed now must not move the axes again
        low = [dot for dot in dots if dot.y == floor]  # these say how far below they are
        place_labels(axis, labelled if len(labelled) <= MOST_LABELS else low, dots)
        files = {}
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, dpi=DPI, format=kind, metadata={"Date": None} if kind == "svg" else None)
            files[f".{kind}"] = buffer.getvalue()
    return files


def _draw(axis: Axes, front: Front, number: int, index: int, floor: float | None) -> list[Point]:
    """The line through a front and its points; a label in the legend for its first seed."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    line = [point.pair for point in front.kept if floor is None or point.pair[1] > floor]
    look = {"color": colour, "ls": DASHES[index % len(DASHES)], "lw": 1.3, "alpha": 0.8}
    if len(line) > 1:
        axis.plot(*zip(*line, strict=True), zorder=2, **look)
    dots = []
    for place, point in enumerate(front.points):
        name = front.name if point.name in ("", front.name) else point.name
        hollow = not any(point is kept for kept in front.kept)
        dot = lifted(Point(name, *point.pair, colour, hollow), floor)
        dots.append(dot)
        axis.plot(
            dot.x, dot.y, "v" if dot.y == floor else marker, ms=5, mec=colour, mew=0.9, ls="none", zorder=3,
            mfc="white" if hollow else colour, clip_on=False, label=None if index or place else front.name,
        )  # fmt: skip
    return dots
