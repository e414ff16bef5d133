"""Fronts, wishes and barriers, on verdicts made by hand."""

import pytest
import torch

from generalist import UserError
from generalist.evaluation import MixturePoint, Wish
from generalist.evaluation.tradeoff import barriers, choose, gaps, marked
from generalist.mixing import MergeWeights

IMAGES = 100


def first(count):
    return torch.arange(IMAGES) < count


def point(share, natural, linf, l2=50, *, robust=None, modules=None):
    """Right on the first so many images; `share` is the weight of the second endpoint."""
    weights = {"linf": 1.0 - share, "natural": float(share)}
    verdicts = {"natural": first(natural), "linf:8/255": first(linf), "l2:1/2": first(l2)}
    return MixturePoint(MergeWeights(weights, modules or {}), verdicts | (robust or {}))


ENDS = [point(0, 80, 50), point(1, 90, 20)]


def shares(points):
    return [p.weights["natural"] for p in points]


def test_figures_are_percentages_of_the_verdicts():
    one = point(0.5, 84, 40, 30)
    assert (one.natural, one.robust, one.mean, one.union) == (84.0, {"linf:8/255": 40.0, "l2:1/2": 30.0}, 35.0, 30.0)
    apart = point(0.5, 84, 40, robust={"l2:1/2": first(84) & ~first(30)})
    assert (apart.mean, apart.union) == (47.0, 10.0)


def test_the_front_is_what_no_other_dominates_and_of_equals_the_simplest():
    points = [*ENDS, point(0.25, 84, 45), point(0.5, 83, 44), point(0.75, 84, 45), point(0.9, 80, 50)]
    assert shares([p for p in marked(points) if p.on_front]) == [0.0, 1.0, 0.25]


def test_a_point_that_is_better_by_one_measure_alone_stays():
    points = marked([*ENDS, point(0.5, 70, 10, 51)])
    assert all(p.on_front for p in points)


@pytest.mark.parametrize(
    ("at_least", "maximise", "share"),
    [
        ({}, "natural", 1.0),
        ({}, "linf", 0.0),
        ({"natural": 84}, "linf", 0.25),
        ({"natural": 84}, "natural", 1.0),
        ({"linf": 30}, "natural", 0.5),
        ({"natural": 84}, "mean", 0.5),
        ({"l2": 60, "natural": 85}, "linf", 0.5),
    ],
)
def test_minima_first_then_the_largest(at_least, maximise, share):
    points = [*ENDS, point(0.25, 84, 45), point(0.5, 86, 38, 60)]
    chosen = choose(points, Wish(at_least, maximise))
    assert chosen.weights["natural"] == share
    assert chosen.is_endpoint == (share in (0.0, 1.0))


def test_nothing_that_an_endpoint_dominates_is_chosen():
    """Its union is the largest, and still an endpoint is better by every single measure."""
    ends = [point(0, 80, 50, robust={"l2:1/2": first(80) & ~first(30)}), ENDS[1]]
    inside = point(0.5, 79, 49, 49)
    assert inside.union > max(end.union for end in ends)
    chosen = choose([*ends, inside], Wish({}, "union"))
    assert chosen.is_endpoint
    assert not any(end.dominates(chosen) for end in ends)


def test_of_equals_the_simplest_is_chosen():
    module = {"fc": {"linf": 1.0, "natural": 0.0}}
    points = [*ENDS, point(0.5, 85, 45, modules=module), point(0.75, 85, 45), point(0.5, 85, 45)]
    assert choose(points, Wish({"natural": 85}, "linf")).mixture is points[-1].mixture


def test_a_wish_out_of_reach_names_the_nearest():
    points = [*ENDS, point(0.5, 86, 38)]
    with pytest.raises(UserError, match=r"natural ≥ 86, linf ≥ 40; the nearest is 0.5 linf \+ 0.5 natural: natural 86"):
        choose(points, Wish({"natural": 86, "linf": 40}))


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish({}, "naturl"), "did you mean 'natural'"),
        (Wish({}, "l1"), "no threat of the norm l1 was evaluated; there are linf:8/255, l2:1/2"),
        (Wish({"natural": 900}), "from 0 to 100"),
        (Wish({"natural": float("nan")}), "from 0 to 100"),
    ],
)
def test_a_wish_that_makes_no_sense(wish, said):
    with pytest.raises(UserError, match=said):
        choose(ENDS, wish)


def test_a_dip_below_the_line_is_a_barrier():
    deep, shallow = point(0.5, 85, 25), point(0.25, 82, 40)
    (found,) = barriers([*ENDS, shallow, deep], lambda end: end)
    assert (found.between, found.measure, found.value, found.line) == (("linf", "natural"), "linf:8/255", 25.0, 35.0)
    assert "0.5 linf + 0.5 natural has linf:8/255 25.00, 10.0 ±" in str(found)
    assert barriers([*ENDS, point(0.5, 85, 33)], lambda end: end) == []


def test_a_dip_that_is_all_batchnorm_is_none():
    poorer = {0.0: point(0, 80, 32), 1.0: point(1, 90, 20)}
    assert barriers([*ENDS, point(0.5, 85, 25)], lambda end: poorer[end.weights["natural"]]) == []


def test_a_dip_within_the_paired_interval_is_none():
    """Five points in the mean, but of 100 images 40 are won and 45 lost."""
    lost = torch.cat([torch.zeros(45), torch.ones(55)]).bool() & first(60)
    ends = [point(0, 80, 20), point(1, 90, 20)]
    noisy = point(0.5, 85, 20, robust={"linf:8/255": lost})
    assert noisy.robust["linf:8/255"] == 15.0
    assert barriers([*ends, noisy], lambda end: end) == []


def test_modules_and_points_beyond_are_on_no_way():
    module = {"fc": {"linf": 1.0, "natural": 0.0}}
    assert barriers([*ENDS, point(1.5, 70, 1), point(0.5, 70, 1, modules=module)], lambda end: end) == []


def test_the_room_around_a_point_grows_with_the_distance_of_its_neighbours():
    crowded = [point(0, 80, 50), point(0.1, 81, 49), point(0.2, 82, 48), point(1, 90, 20)]
    room = gaps(crowded)
    assert room[1] < room[2] < room[3]
