"""The points of a dial: the front as text, all of them as CSV, and the trade-off as a figure."""

import csv
import io
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from generalist.core.names import MEAN, UNION
from generalist.evaluation import MixturePoint
from generalist.evaluation.fronts import pareto_front
from generalist.report.figures import GLOBAL, GREY, LEARNERS, PAPER, pictures, pretty_threat
from generalist.report.scatter import Point, place_labels, within_percent

CHOSEN_COLOUR = "#000000"
BESIDE_COLOUR = "#6a3d9a"
DASHED = (0, (3, 1.5))


def front_text(points: Sequence[MixturePoint], *, title: str, attack: str, chosen: MixturePoint | None = None) -> str:
    """The front, the endpoints that are not on it, and the chosen point, from least to most natural accuracy."""
    endpoints, threats = list(points[0].weights), list(points[0].robust)
    rows = sorted(
        (point for point in points if point.on_front or point.is_endpoint or _is(point, chosen)),
        key=lambda point: (point.natural, -point.mean),
    )
    head = [
        *(f"w({name})" for name in endpoints),
        "natural",
        *(f"{attack} {threat}" for threat in threats),
        MEAN,
        UNION,
        "",
    ]
    lines = [
        [
            *(f"{weight:.3f}" for weight in point.weights.values()),
            *(f"{value:.2f}" for value in (point.natural, *point.robust.values(), point.mean, point.union)),
            _remarks(point, points, chosen),
        ]
        for point in rows
    ]
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    table = [
        "  ".join(
            cell.rjust(width) if i < len(widths) - 1 else cell
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    ]
    return "\n".join([title, *table])


def _is(point: MixturePoint, chosen: MixturePoint | None) -> bool:
    return chosen is not None and point.mixture is chosen.mixture


def _remarks(point: MixturePoint, points: Sequence[MixturePoint], chosen: MixturePoint | None) -> str:
    found = [f"the endpoint {point.mixture.endpoint}"] if point.is_endpoint else []
    if not point.on_front:
        better = any(other.dominates(point) for other in points)
        found.append("dominated by a mixture" if better else "a simpler mixture has the same figures")
    found += [str(point.mixture).partition("; ")[2]] if point.modules else []
    return ", ".join([*found, *(["chosen"] if _is(point, chosen) else [])])


def front_csv(points: Sequence[MixturePoint]) -> str:
    """One row per point, in the order in which they were evaluated."""
    endpoints, modules = list(points[0].weights), list(dict.fromkeys(m for point in points for m in point.modules))
    own = [(module, endpoint) for module in modules for endpoint in endpoints]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = [f"weight:{name}" for name in endpoints] + [f"weight:{module}:{name}" for module, name in own]
    writer.writerow([*columns, "natural", *points[0].robust, MEAN, UNION, "on_front", "endpoint"])
    for point in points:
        weights = [*point.weights.values(), *(point.mixture.of(module)[name] for module, name in own)]
        figures = [point.natural, *point.robust.values(), point.mean, point.union]
        writer.writerow([*weights, *figures, int(point.on_front), point.mixture.endpoint or ""])
    return buffer.getvalue()


def draw_front(
    points: Sequence[MixturePoint],
    *,
    title: str,
    chosen: MixturePoint | None = None,
    beside: Sequence[MixturePoint] = (),
) -> dict[str, bytes]:
    """Natural against robust accuracy, a panel per threat; the same picture by file ending, as PNG and as SVG."""
    threats = list(points[0].robust)
    colours = _colours(list(points[0].weights))
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(max(4.6, 3.9 * len(threats)), 4.0), layout="constrained")
        axes: list[Axes] = list(figure.subplots(1, len(threats), squeeze=False)[0])
        for axis, threat in zip(axes, threats, strict=True):
            _others(axis, beside, threat)
            _panel(axis, points, threat, colours, chosen)
        figure.suptitle(title)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3 if len(threats) > 1 else 2)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # what is placed now must not move the axes again
        for axis, threat in zip(axes, threats, strict=True):
            dots = [_dot(point, threat, colours, chosen) for point in points]
            dots += [Point(next(iter(p.weights)), p.natural, p.robust[threat], BESIDE_COLOUR) for p in beside]
            place_labels(axis, [dot for dot in dots if dot.label], dots)
        return pictures(figure)


def _colours(endpoints: Sequence[str]) -> dict[str, str]:
    """Learners have their own colours in all figures; other names take those that are left."""
    known = {name: LEARNERS[name.rpartition(":")[2]] for name in endpoints if name.rpartition(":")[2] in LEARNERS}
    distinct = {name: colour for name, colour in known.items() if list(known.values()).count(colour) == 1}
    free = [colour for colour in LEARNERS.values() if colour not in distinct.values()]
    others = [name for name in endpoints if name not in distinct]
    return distinct | {name: free[i % len(free)] for i, name in enumerate(others)}


def _dot(point: MixturePoint, threat: str, colours: Mapping[str, str], chosen: MixturePoint | None) -> Point:
    """Where a point lies in the panel of a threat; endpoints and the chosen point have a label."""
    name = point.mixture.endpoint
    label = name or ("chosen" if _is(point, chosen) else "")
    return Point(label, point.natural, point.robust[threat], colours[name] if name else CHOSEN_COLOUR)


def _others(axis: Axes, beside: Sequence[MixturePoint], threat: str) -> None:
    """Models that are not mixed, as diamonds."""
    if beside:
        axis.plot(
            [point.natural for point in beside], [point.robust[threat] for point in beside], "D", ms=5,
            mfc=BESIDE_COLOUR, mec="white", mew=0.6, label="other runs", zorder=4, clip_on=False,
        )  # fmt: skip


def _panel(
    axis: Axes,
    points: Sequence[MixturePoint],
    threat: str,
    colours: Mapping[str, str],
    chosen: MixturePoint | None,
) -> None:
    base, *others = points[0].weights
    axis.margins(0.12)
    front = pareto_front([(point.natural, point.robust[threat]) for point in points])
    if len(front) > 1:
        axis.plot(
            *zip(*front, strict=True), color=GLOBAL, alpha=0.18, lw=4, zorder=0, label="Pareto front of the panel"
        )
    for other in others:
        _way(axis, points, threat, base, other, colours[other])
    for on_front, label in ((False, "dominated"), (True, "on the front")):
        rows = [point for point in points if point.on_front == on_front and not point.is_endpoint]
        if not rows:  # an empty line that is not clipped would have room made for it at (0, 0)
            continue
        face = GREY if on_front else "white"
        axis.plot(
            [point.natural for point in rows], [point.robust[threat] for point in rows], "o", mec="#555555", mew=0.7,
            mfc=face, label=label, zorder=3, clip_on=False,
        )  # fmt: skip
    for point in points:
        name = point.mixture.endpoint
        if name:
            axis.plot(
                point.natural, point.robust[threat], "s", ms=6, mfc=colours[name], mec="white", mew=0.6, zorder=4,
                clip_on=False,
            )  # fmt: skip
        if _is(point, chosen):
            axis.plot(
                point.natural, point.robust[threat], "*", ms=11, mfc="none", mec=CHOSEN_COLOUR, mew=1.1, zorder=5,
                label="chosen", clip_on=False,
            )  # fmt: skip
    axis.set(xlim=within_percent(_wide(axis.get_xlim())), ylim=within_percent(_wide(axis.get_ylim())))
    axis.set(xlabel="natural accuracy (%)", ylabel="robust accuracy (%)", title=pretty_threat(threat))


def _wide(limits: tuple[float, float]) -> tuple[float, float]:
    """At least two points of accuracy, also where all figures are the same."""
    low, high = limits
    more = max(0.0, 2 - (high - low)) / 2
    return low - more, high + more


def _way(axis: Axes, points: Sequence[MixturePoint], threat: str, base: str, other: str, colour: str) -> None:
    """The mixtures of the base and one other endpoint, in their order; dashed where they go beyond it."""
    along = [p for p in points if not p.modules and set(p.mixture.involved) <= {base, other}]
    along.sort(key=lambda point: point.weights[other])
    for inside in (True, False):
        part = [p for p in along if (p.weights[other] <= 1 if inside else p.weights[other] >= 1)]
        if len(part) < 2:
            continue
        label = f"{base} → {other}" if inside else f"beyond {other}"
        axis.plot(
            [p.natural for p in part], [p.robust[threat] for p in part], color=colour, ls="-" if inside else DASHED,
            lw=1.2, label=label, zorder=1,
        )  # fmt: skip
