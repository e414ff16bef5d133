"""The table and the figure of curves."""

import io
import math

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from curve_cases import curve_result
from generalist.report import curves
from generalist.report.curves import curve_table, draw_curves

A = {"linf:1/10": [0.0, 0.02, 0.06, 0.09, 0.13, 0.2], "l2:1": [0.0, 0.3, 0.8, 0.9, 1.1, 1.5]}
B = {"linf:1/10": [0.0, 0.01, 0.02, 0.03, 0.05, math.inf], "l2:1": [0.0, 0.1, 0.2, 0.3, 0.4, math.inf]}


def records(**found):
    return {name: curve_result(rows).record() for name, rows in found.items()}


def test_the_table_has_a_row_per_model_and_threat():
    console = Console(width=140, file=io.StringIO())
    console.print(curve_table(records(at=A, nt=B)))
    text = console.file.getvalue()
    assert "6 images" in text
    rows = [line.replace("│", " ").split() for line in text.splitlines() if "linf:1/10" in line or "l2:1" in line]
    assert [row[:4] for row in rows] == [
        ["at", "linf:1/10", "83.33", "66.67"], ["at", "l2:1", "83.33", "83.33"],
        ["nt", "linf:1/10", "83.33", "50.00"], ["nt", "l2:1", "83.33", "50.00"],
    ]  # fmt: skip
    assert rows[0][-2:] == ["0.06", "0.08333"]


@pytest.mark.filterwarnings("error")
def test_png_and_svg_are_one_picture():
    found = draw_curves(records(at=A, nt=B))
    assert Image.open(io.BytesIO(found[".png"])).format == "PNG"
    text = found[".svg"].decode()
    assert text.count('id="axes_') == 2
    assert draw_curves(records(at=A, nt=B))[".svg"].decode() == text


@pytest.mark.parametrize("count", [1, 2, 8])
def test_lines_are_labelled_in_their_colour_and_labels_do_not_overlap(count, monkeypatch):
    drawn: list[Figure] = []

    def kept(figure):
        drawn.append(figure)
        return {}

    monkeypatch.setattr(curves, "pictures", kept)
    rows = {f"method-{k}": {"linf:1/10": [0.0, *(0.01 * (k + 1) * i for i in range(1, 9))]} for k in range(count)}
    draw_curves(records(**rows))
    (figure,) = drawn
    (axis,) = figure.axes
    assert isinstance(axis, Axes)
    lines = [line for line in axis.get_lines() if line.get_drawstyle() == "steps-post"]
    assert len(lines) == count
    assert axis.get_xlabel() == r"$\epsilon$ (pixels in 0…1)"
    assert axis.get_ylabel() == "accuracy (%)"
    labels = [text for text in axis.texts if text.get_text().startswith("method")]
    assert len(labels) == (count if count > 1 else 0)
    with matplotlib.rc_context(curves.PAPER):
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in labels]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert len({text.get_color() for text in labels}) == len(labels)


def test_a_model_that_nothing_breaks_has_a_flat_line():
    assert draw_curves(records(wall={"linf:1/10": [math.inf] * 4}))[".png"].startswith(b"\x89PNG")
