"""Fronts by hand: interpolation, domination, hypervolume, and what holds for any points."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generalist.evaluation.fronts import (
    Front,
    FrontPoint,
    Spread,
    common_levels,
    dominated_points,
    hypervolume,
    pareto_front,
    robust_at,
    shares_at,
    spread,
)

IMAGES = 100
counts = st.integers(0, IMAGES)
clouds = st.lists(st.tuples(counts, counts), min_size=1, max_size=12)


def point(natural, robust, name="", **more):
    """Right on the first so many of 100 images."""
    images = torch.arange(IMAGES)
    return FrontPoint(name or f"{natural}/{robust}", images < natural, images < robust, **more)


def front(*pairs, name="mine", seed=0):
    return Front(name, seed, tuple(point(*pair) for pair in pairs))


def test_the_pareto_front():
    assert pareto_front([(1, 5), (2, 4), (2, 3), (3, 4), (0, 5), (4, 1)]) == [(1, 5), (3, 4), (4, 1)]
    assert pareto_front([]) == []


@pytest.mark.parametrize(
    ("points", "natural", "robust"),
    [
        ([(80, 50)], 80, 50),  # a front of one point is that point
        ([(80, 50)], 79.9, None),
        ([(80, 50)], 80.1, None),
        ([(80, 50), (90, 20)], 80, 50),
        ([(80, 50), (90, 20)], 90, 20),
        ([(80, 50), (90, 20)], 85, 35),
        ([(80, 50), (90, 20)], 82.5, 42.5),
        ([(90, 20), (80, 50)], 82.5, 42.5),  # in any order
        ([(80, 50), (85, 10), (90, 20)], 85, 35),  # a dominated point is passed by
        ([(70, 40), (80, 50), (90, 20)], 75, None),  # and widens nothing
        ([(80, 50), (84, 40), (90, 20)], 87, 30),
        ([(80, 50), (80, 45), (90, 20)], 80, 50),  # of equals in one coordinate the better
        ([(80, 50), (80, 50), (90, 20)], 85, 35),  # a tie
        ([(80, 50), (90, 50)], 85, None),  # the left one is dominated
        ([(80, 50), (90, 20)], 91, None),  # no extrapolation
        ([(80, 50), (90, 20)], 79, None),
        ([], 80, None),
    ],
)
def test_robust_accuracy_at_a_natural_one(points, natural, robust):
    assert robust_at(points, natural) == robust


@given(clouds, st.floats(0, 100))
def test_an_interpolated_value_lies_between_its_neighbours(points, natural):
    kept = pareto_front(points)
    value = robust_at(points, natural)
    inside = kept[0][0] <= natural <= kept[-1][0]
    assert (value is not None) == inside
    if value is not None:
        assert sum(share for _, share in shares_at(kept, natural)) == pytest.approx(1)
        above = [r for n, r in kept if n <= natural]
        below = [r for n, r in kept if n >= natural]
        assert below[0] - 1e-9 <= value <= above[-1] + 1e-9


@given(clouds)
def test_a_front_passes_through_its_points_and_falls(points):
    kept = pareto_front(points)
    assert [robust_at(points, n) for n, _ in kept] == [r for _, r in kept]
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(kept))
    for n, r in points:
        beaten = any(b >= n and c >= r and (b, c) != (n, r) for b, c in points)
        assert ((n, r) in kept) == (not beaten)


@pytest.mark.parametrize(
    ("points", "reference", "area"),
    [
        ([(80, 50)], (0, 0), 40.0),
        ([(80, 50), (90, 20)], (0, 0), 42.0),  # 80·50 + 10·20
        ([(80, 50), (90, 20), (85, 10), (80, 50), (80, 40)], (0, 0), 42.0),
        ([(80, 50), (90, 20)], (80, 0), 10.0),  # 10·20 of 20·100
        ([(80, 50), (90, 20)], (60, 10), (20 * 40 + 10 * 10) / 36),
        ([(80, 50), (90, 20)], (60, 30), 20 * 20 / 28),  # the second point lies below the reference
        ([(80, 50)], (85, 0), 0.0),
        ([(100, 100)], (0, 0), 100.0),
        ([(100, 0), (0, 100)], (0, 0), 0.0),
    ],
)
def test_hypervolume(points, reference, area):
    assert hypervolume(points, reference) == pytest.approx(area)


@given(clouds)
def test_hypervolume_is_the_share_of_dominated_cells(points):
    cells = sum(any(n > x and r > y for n, r in points) for x in range(0, IMAGES, 5) for y in range(0, IMAGES, 5))
    coarse = [(5 * math.ceil(n / 5), 5 * math.ceil(r / 5)) for n, r in points]
    assert hypervolume(coarse) == pytest.approx(100 * cells / 400)


@given(clouds, st.tuples(counts, counts))
def test_one_more_point_never_makes_the_volume_smaller(points, more):
    assert hypervolume([*points, more]) >= hypervolume(points) - 1e-9


@pytest.mark.parametrize(
    ("ranges", "levels"),
    [
        ([(80, 90), (78, 84)], (81, 82, 83)),
        ([(80, 80.1), (70, 90)], (80.025, 80.05, 80.075)),  # too narrow to be rounded
        ([(80, 81), (81, 90)], (81,)),
        ([(80, 81), (82, 90)], ()),
        ([], ()),
    ],
)
def test_levels_are_evenly_spaced_over_what_all_share(ranges, levels):
    assert common_levels(ranges) == pytest.approx(levels)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted).map(tuple), min_size=1, max_size=5))
def test_levels_lie_in_every_range(ranges):
    assert all(low <= level <= high for level in common_levels(ranges) for low, high in ranges)


def test_points_of_a_front():
    one = front((80, 50), (85, 10), (90, 20), (80, 50))
    assert [p.pair for p in one.kept] == [(80, 50), (90, 20)]
    assert one.kept[0] is one.points[0]  # of equals the first
    assert one.range == (80, 90)
    assert one.robust_at(85) == 35
    verdicts = one.verdicts_at(85)
    assert 100 * verdicts.mean().item() == pytest.approx(35)
    assert verdicts[[10, 30, 60]].tolist() == [1, 0.5, 0]
    assert one.verdicts_at(95) is None
    assert one.hypervolume((0, 0)) == pytest.approx(42)


def test_a_dominated_point_is_told_with_the_paired_difference_and_its_interval():
    ours, theirs = front((80, 50), name="ours"), front((84, 60), (90, 20), name="theirs")
    (one,) = dominated_points([ours, theirs])
    assert (one.point, one.by, one.front, one.by_front) == (ours.points[0], theirs.points[0], ours, theirs)
    assert (one.natural.points, one.robust.points) == pytest.approx((4, 10))
    # paired: only 4, and 10, of the 100 images differ, all in the same direction
    assert one.natural.margin == pytest.approx(196 * (0.04 * 0.96) ** 0.5 / 10, abs=1e-3)
    assert one.robust.margin == pytest.approx(196 * (0.1 * 0.9) ** 0.5 / 10, abs=1e-3)
    assert one.clear
    assert not one.within
    assert one.dominators == 1


def test_a_difference_that_chance_could_make_is_not_clear():
    images = torch.arange(IMAGES)
    noisy = FrontPoint("noisy", images % 5 != 0, (images % 2 == 0) & (images % 5 != 0))  # 80 / 40
    shifted = FrontPoint("shifted", images % 6 != 1, images % 7 < 3)  # 83 / 43, on other images
    (one,) = dominated_points([Front("a", 0, (noisy,)), Front("b", 0, (shifted,))])
    assert (one.natural.points, one.robust.points) == pytest.approx((3, 4))
    assert not one.clear


def test_ties_and_other_seeds_do_not_dominate():
    assert dominated_points([front((80, 50), name="a"), front((80, 50), name="b")]) == []
    assert dominated_points([front((80, 50), name="a"), front((90, 60), name="b", seed=1)]) == []
    assert len(dominated_points([front((80, 50), name="a"), front((80, 51), name="b")])) == 1


def test_a_point_of_another_front_is_named_before_one_of_its_own():
    ours, theirs = front((80, 50), (90, 60), name="ours"), front((81, 51), name="theirs")
    found = {one.point.name: one for one in dominated_points([ours, theirs])}
    assert found["80/50"].by_front is theirs
    assert found["80/50"].dominators == 2
    assert found["81/51"].by_front is ours
    assert dominated_points([ours])[0].within


def test_the_cost_of_a_front_counts_every_training_once():
    dialled = [point(80, 50, training="x", cost=1.1), point(90, 20, training="x", cost=1.1)]
    assert Front("dial", 0, tuple(dialled)).cost == 1.1
    swept = [point(80, 50, training="x", cost=1.0), point(90, 20, training="y", cost=2.0)]
    assert Front("swept", 0, tuple(swept)).cost == 3.0
    assert Front("unknown", 0, (swept[0], point(90, 20))).cost is None


def test_mean_and_standard_deviation_over_seeds():
    one = spread([50.0, None, 53.0])
    assert one == Spread((50.0, 53.0))
    assert (one.mean, one.sd) == pytest.approx((51.5, 4.5**0.5))
    assert one.text() == "51.5 ± 2.1"
    assert Spread((50.0,)).text("+.1f") == "+50.0"
    assert Spread((50.0,)).record() == {"mean": 50.0, "sd": None, "seeds": 1}
    assert spread([None]) is None
