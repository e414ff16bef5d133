"""What a model takes for what: confusion matrices as a figure, and the worst of them as text."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from generalist.evaluation.explained import Explanation
from generalist.evaluation.tradeoff import NATURAL
from generalist.report.figures import PAPER, picture, pretty_threat

FEW = 12
"""Up to this many classes each cell has its number and each class its name."""


def confusion_lines(found: Explanation, *, most: int = 3) -> list[str]:
    """The accuracies, then for each threat the weakest classes and the confusions most frequent under attack."""
    by_class = found.classwise
    figures = ", ".join(f"{measure} {by_class.overall(measure):.1f}" for measure in by_class.measures)
    lines = [f"{len(found.labels)} test images, {found.attack}, % right: {figures}"]
    for view in found.views:
        where = "without an attack" if view == NATURAL else f"under {view}"
        accuracy, counts = by_class.accuracy(view), by_class.counts
        weak = by_class.weakest(view, most=most)
        worst = [f"{found.classes[k]} {accuracy[k]:.0f} % of {counts[k]}" for k in weak]
        lines.append(f"weakest {where}: {', '.join(worst)}")
        pairs = found.confusions(view, most=most)
        taken = [f"{found.classes[one.label]} → {found.classes[one.predicted]} {one.percent:.0f} %" for one in pairs]
        lines.append(f"confused {where}: {', '.join(taken) or 'none'}")
    return lines


def draw_confusion(found: Explanation, *, title: str, kind: str = "png") -> bytes:
    """A matrix for each view, rows in % of the images of their class; `kind` is png or svg."""
    count = len(found.classes)
    few = count <= FEW
    side = 0.3 * count + 1.2 if few else 4.4
    with matplotlib.rc_context({**PAPER, "axes.grid": False}):
        figure = Figure(
            figsize=(side * len(found.views) + 0.9, side + (1.3 if _long(found) else 0.7)), layout="constrained"
        )
        axes = figure.subplots(1, len(found.views), squeeze=False)[0]
        for place, (axis, (view, matrix)) in enumerate(zip(axes, found.confusion.items(), strict=True)):
            share = 100 * matrix / np.maximum(1, matrix.sum(1, keepdims=True))
            image = axis.imshow(share, cmap="Blues", vmin=0, vmax=100)
            axis.set(title=NATURAL if view == NATURAL else pretty_threat(view), xlabel="taken for")
            if place == 0:
                axis.set_ylabel("class")
            if few:
                axis.set_xticks(range(count), found.classes, rotation=90 if _long(found) else 0)
                axis.set_yticks(range(count), found.classes if place == 0 else [""] * count)
                for row, column in zip(*matrix.nonzero(), strict=True):
                    ink = "white" if share[row, column] > 55 else "#222222"
                    axis.text(column, row, f"{share[row, column]:.0f}", ha="center", va="center", fontsize=7, color=ink)
        figure.colorbar(image, ax=list(axes), label="% of the class", shrink=0.8)
        figure.suptitle(f"{title}: {len(found.labels)} images of the test split, {found.attack}")
        return picture(figure, kind)


def _long(found: Explanation) -> bool:
    return max(map(len, found.classes)) > 3
