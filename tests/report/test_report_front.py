"""The front of a dial as text and figure, on points made by hand."""

import csv
import io

import pytest
import torch

from generalist.evaluation import MixturePoint
from generalist.evaluation.tradeoff import marked
from generalist.mixing import MergeWeights
from generalist.report.front import draw_front, front_csv, front_text


def point(share, natural, linf, modules=None, l2=None):
    verdicts = {"natural": torch.arange(20) < natural, "linf:8/255": torch.arange(20) < linf}
    verdicts |= {} if l2 is None else {"l2:1/2": torch.arange(20) < l2}
    return MixturePoint(MergeWeights({"linf": 1.0 - share, "natural": float(share)}, modules or {}), verdicts)


FC = {"fc": {"linf": 0.25, "natural": 0.75}}
POINTS = marked([point(0, 10, 8), point(1, 14, 1), point(0.5, 15, 5, FC), point(0.75, 12, 4), point(1.5, 16, 0)])


def test_text_has_the_front_the_endpoints_and_what_was_chosen():
    title, head, *rows = front_text(POINTS, title="mine", attack="PGD20", chosen=POINTS[2]).splitlines()
    assert title == "mine"
    assert head.split()[:4] == ["w(linf)", "w(natural)", "natural", "PGD20"]
    assert [row.split()[1:4] for row in rows] == [
        ["0.000", "50.00", "40.00"], ["1.000", "70.00", "5.00"], ["0.500", "75.00", "25.00"], ["1.500", "80.00", "0.00"]
    ]  # fmt: skip
    assert rows[0].endswith("the endpoint linf")
    assert rows[1].endswith("the endpoint natural, dominated by a mixture")
    assert rows[2].endswith("fc: 0.25 linf + 0.75 natural, chosen")


def test_csv_has_every_point_and_the_weights_of_modules():
    rows = list(csv.DictReader(io.StringIO(front_csv(POINTS))))
    assert [row["on_front"] for row in rows] == ["1", "0", "1", "0", "1"]
    assert [row["weight:fc:natural"] for row in rows] == ["0.0", "1.0", "0.75", "0.75", "1.5"]
    assert [row["endpoint"] for row in rows] == ["linf", "natural", "", "", ""]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("points", [POINTS, marked([point(share, 2, 0, l2=2) for share in (0, 1, 0.5, 1.5)])])
def test_the_picture_is_drawn_also_where_all_figures_are_alike(points):
    found = draw_front(points, title="mine", chosen=points[0])
    assert found[".png"].startswith(b"\x89PNG")
    assert b"<svg" in found[".svg"]
