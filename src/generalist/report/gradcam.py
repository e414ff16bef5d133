"""Images beside what a model looks at (Generalist++ Fig. 8), and images by which models differ."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from generalist.evaluation.explained import Explanation, Gallery
from generalist.evaluation.tradeoff import NATURAL
from generalist.report.figures import PALETTE, PAPER, picture, pretty_threat

RIGHT, WRONG = ("✓", PALETTE[0]), ("✗", PALETTE[1])
"""A mark and a colour: nobody depends on the colour alone."""
Array = NDArray[Any]


def _show(axis: Axes, image: Array) -> None:
    """[C, H, W] in [0, 1]."""
    plain = np.moveaxis(image, 0, 2)
    axis.imshow(plain if plain.shape[2] == 3 else plain[..., 0], cmap="gray", vmin=0, vmax=1)


def _bare(axis: Axes) -> None:
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def _heat(axis: Axes, image: Array, heat: Array) -> None:
    """The map over the image in grey."""
    axis.imshow(image.mean(0), cmap="gray", vmin=0, vmax=1)
    axis.imshow(heat, cmap="viridis", alpha=0.6, vmin=0, vmax=1)


def draw_gradcam(found: Explanation, *, title: str, kind: str = "png") -> bytes:
    """A row for each example: image, Grad-CAM, and for each threat attacked image, perturbation and Grad-CAM.

    Perturbations are magnified: grey is no change, black and white the largest one of the image.
    """
    heads = ["image", "Grad-CAM"]
    for threat in found.threats:
        heads += [pretty_threat(threat), "perturbation", "Grad-CAM"]
    rows = found.examples
    with matplotlib.rc_context({**PAPER, "axes.grid": False}):
        figure = Figure(figsize=(1.15 * len(heads) + 0.2, 1.4 * len(rows) + 0.8), layout="constrained")
        axes = figure.subplots(len(rows), len(heads), squeeze=False)
        for line, one in zip(axes, rows, strict=True):
            image = one.image / 255
            _show(line[0], image)
            _heat(line[1], image, one.heat[NATURAL])
            line[0].set_xlabel(f"class {found.classes[one.label]}", fontsize=7)
            _said(line[1], found, one.label, one.predicted[NATURAL], one.confidence[NATURAL])
            for place, threat in enumerate(found.threats):
                attacked, change, heat = line[2 + 3 * place : 5 + 3 * place]
                _show(attacked, one.x_adv[threat])
                largest = max(float(np.abs(one.perturbation[threat]).max()), 1e-9)
                _show(change, 0.5 + one.perturbation[threat] / (2 * largest))
                change.set_xlabel(f"± {largest:.2g}", fontsize=7)
                _heat(heat, one.x_adv[threat], one.heat[threat])
                _said(heat, found, one.label, one.predicted[threat], one.confidence[threat])
        for axis in axes.flat:
            _bare(axis)
        for axis, head in zip(axes[0], heads, strict=True):
            axis.set_title(head, fontsize=8)
        figure.suptitle(f"{title}, {found.attack}; ✓ right, ✗ wrong; yellow: speaks most for the class named")
        return picture(figure, kind)


def _said(axis: Axes, found: Explanation, label: int, predicted: int, confidence: float) -> None:
    mark, colour = RIGHT if label == predicted else WRONG
    axis.set_xlabel(f"{mark} {found.classes[predicted]} ({100 * confidence:.0f} %)", fontsize=7, color=colour)


def gallery_rows(shown: Gallery, *, most: int = 8) -> dict[str, tuple[int, ...]]:
    """By a heading, the first images that one model alone gets right or wrong under a threat."""
    rows = {}
    kinds = [("only {} is right", shown.only_right), ("only {} is wrong", shown.only_wrong)]
    if len(shown.only_right) == 2:  # of two, one is wrong where only the other is right
        del kinds[1]
    for words, of in kinds:
        for name, views in of.items():
            for view, found in views.items():
                if view != NATURAL and found:
                    rows[f"{words.format(name)}, {view} ({len(found)} image{'s' * (len(found) > 1)})"] = found[:most]
    return rows


def draw_gallery(
    rows: Mapping[str, tuple[int, ...]], images: Mapping[int, Array], found: Explanation, *, title: str, kind: str
) -> bytes:
    """A row for each heading of `gallery_rows`; `images` has the pixels, uint8 [C, H, W], by index."""
    wide = max(map(len, rows.values()))
    with matplotlib.rc_context({**PAPER, "axes.grid": False}):
        figure = Figure(figsize=(max(4.5, 0.95 * wide + 0.2), 1.3 * len(rows) + 0.5), layout="constrained")
        parts = np.atleast_1d(np.asarray(figure.subfigures(len(rows), 1), dtype=object))
        for part, (heading, indices) in zip(parts, rows.items(), strict=True):
            part.suptitle(heading, fontsize=8)
            axes = part.subplots(1, wide, squeeze=False)[0]
            for axis, index in zip(axes, [*indices, *[None] * (wide - len(indices))], strict=True):
                _bare(axis)
                if index is not None:
                    _show(axis, images[index] / 255)
                    axis.set_xlabel(found.classes[found.labels[index]], fontsize=7)
        figure.suptitle(title)
        return picture(figure, kind)
