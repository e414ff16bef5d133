"""The way between learners, on points made by hand."""

from itertools import product

import pytest
import torch

from generalist.evaluation import MixturePoint
from generalist.evaluation.glance import Glance
from generalist.mixing import MergeWeights, lattice
from generalist.report.ways import draw_ways, way
from run_cases import rendered_figures

LINF, L2 = "linf:8/255", "l2:1/2"


def points(names, count, *, losses=True, beyond=1, modules=False):
    found = []
    for place, weights in enumerate(lattice(names, points=count, beyond=beyond)):
        verdicts = {name: torch.arange(20) < 20 - (place + k) % 20 for k, name in enumerate(("natural", LINF, L2))}
        glance = Glance({name: 0.5 + place + k for k, name in enumerate(verdicts)} if losses else {})
        own = {"fc": dict(weights)} if modules and place >= len(names) else {}
        found.append(MixturePoint(MergeWeights(weights, own), verdicts, glance))
    return found


def test_a_way_has_the_mixtures_of_two_alone_in_their_order():
    found = way(points(["linf", "natural", "l2"], 21, beyond="5/4"), "linf", "l2")
    assert [point.weights["l2"] for point in found] == [0, 0.25, 0.5, 0.75, 1, 1.25]
    assert {point.weights["natural"] for point in found} == {0}
    assert [point.mixture.endpoint for point in found if point.is_endpoint] == ["linf", "l2"]


def test_two_ends_without_a_mixture_between_them_have_no_way():
    ends = points(["linf", "natural", "l2"], 3)
    assert all(not way(ends, a, b) for a, b in product(["linf"], ["natural", "l2"]))
    assert draw_ways(ends, title="ends") == {}
    assert draw_ways(points(["linf", "l2"], 5, modules=True), title="each module for itself") == {}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("found", "said", "unsaid"),
    [
        (points(["linf", "natural", "l2"], 10, beyond="3/2"), ["linf → l2", "natural → l2", "cross-entropy"], []),
        (points(["linf", "l2"], 5), ["linf → l2", "weight of l2, the rest linf"], ["natural → l2"]),
        (points(["linf", "natural", "l2"], 6, losses=False), ["linf → l2", "accuracy (%)"], ["cross-entropy"]),
        (points(["a", "b", "c", "d"], 10, losses=False), ["a → b", "c → d"], []),
    ],
)
def test_the_picture_has_a_panel_for_each_pair(found, said, unsaid):
    with rendered_figures(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("generalist.report.ways.PAPER", {"svg.fonttype": "none"})
        files = draw_ways(found, title="mine")
    assert files[".png"].startswith(b"\x89PNG")
    text = files[".svg"].decode()
    assert all(words in text for words in said)
    assert not any(words in text for words in unsaid)
