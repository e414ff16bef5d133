"""Accuracy against ε: a table, and the curves as a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from generalist.core.threat import Threat
from generalist.evaluation import Curve, record_curves
from generalist.evaluation.curve import HEADS, curve_cells, curve_rows
from generalist.report.figures import DASHES, GREY, PALETTE, PAPER, pictures, pretty_threat
from generalist.report.scatter import within_percent

APART = 5.5
"""Percentage points between two labels."""


def curve_table(records: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row per model and threat."""
    images = " or ".join(map(str, sorted({record["images"] for record in records.values()})))
    table = Table(
        title=f"accuracy (%) against ε, test split, {images} images", title_justify="left", title_style="bold",
        header_style="bold", caption_justify="left",
        caption="median distance and AUC (the mean distance up to 4ε) in pixel units of the norm",
    )  # fmt: skip
    table.add_column("model")
    table.add_column("threat")
    for head in HEADS:
        table.add_column(head, justify="right")
    for name, record in records.items():
        for threat, row in curve_rows(record).items():
            table.add_row(escape(name), threat, *curve_cells(row).values())
    return table


def draw_curves(records: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """A panel per threat, a labelled line per model; the same picture by file ending, as PNG and as SVG."""
    panels: dict[Threat, dict[str, Curve]] = {}
    for name, record in records.items():
        for curve in record_curves(record):
            panels.setdefault(curve.threat, {})[name] = curve
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(max(4.6, 3.7 * len(panels)), 3.3), layout="constrained")
        axes: list[Axes] = list(figure.subplots(1, len(panels), squeeze=False)[0])
        for axis, (threat, curves) in zip(axes, panels.items(), strict=True):
            _panel(axis, threat, curves, list(records))
        images = " or ".join(map(str, sorted({record["images"] for record in records.values()})))
        title = next(iter(records)) if len(records) == 1 else "accuracy against the radius"
        figure.suptitle(f"{title}: {images} images of the test split")
        return pictures(figure)


def _panel(axis: Axes, threat: Threat, curves: Mapping[str, Curve], names: Sequence[str]) -> None:
    last = max((d for curve in curves.values() for d in curve.distances if d <= float(curve.eps_max)), default=0.0)
    end = max(1.1 * threat.radius, min(REACH_SHOWN * last, float(4 * threat.eps)))
    for name, curve in curves.items():
        look = {"color": PALETTE[names.index(name) % len(PALETTE)], "ls": DASHES[names.index(name) % len(DASHES)]}
        axis.plot(*curve.steps(), drawstyle="steps-post", **look)
    axis.axvline(threat.radius, color=GREY, lw=0.8, ls=":", zorder=0)
    axis.set(xlim=(0, end), ylim=within_percent((0, 102)), title=pretty_threat(str(threat)))
    axis.set(xlabel=r"$\epsilon$ (pixels in 0…1)", ylabel="accuracy (%)")
    top = axis.get_xaxis_transform()
    axis.text(threat.radius, 1.0, r" $\epsilon$", color=GREY, transform=top, ha="left", va="top", fontsize=8)
    if len(names) > 1:
        _labels(axis, curves, names, end)


REACH_SHOWN = 1.08


def _labels(axis: Axes, curves: Mapping[str, Curve], names: Sequence[str], end: float) -> None:
    """Each beside its line, where the line passes a height of its own: no two labels at one height."""
    count = len(curves)
    order = sorted(curves, key=lambda name: curves[name].auc)
    for place, name in enumerate(order):
        curve = curves[name]
        height = 18 + (64 * (place + 0.5) / count if count * APART < 64 else APART * place)
        height = min(height, 0.92 * curve.accuracy(0))
        at = next((eps for eps in curve.steps()[0] if curve.accuracy(eps) <= height), end)
        left = at < 0.62 * end
        axis.annotate(
            name, (at, height), xytext=(4 if left else -4, 0), textcoords="offset points", va="center", fontsize=7,
            ha="left" if left else "right", color=PALETTE[names.index(name) % len(PALETTE)],
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
