"""Which ranks have which learner: pure, so checked by hand and by brute force."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generalist import load_recipe
from generalist.runs.experiment import build_plan
from generalist.training.placement import Phase, phases, place, speed_up

COSTS = {"linf": 11.0, "natural": 1.0, "l2": 11.0}


def loads(placed, costs):
    found = {}
    for name, ranks in placed.items():
        for rank in ranks:
            found[rank] = found.get(rank, 0) + costs[name] / len(ranks)
    return found


def test_fewer_ranks_than_learners_are_packed():
    placed = place(COSTS, ranks=2, most=128)
    assert sorted(loads(placed, COSTS).values()) == [11, 12]
    assert place(COSTS, ranks=1, most=128) == {"linf": (0,), "l2": (0,), "natural": (0,)}


def test_more_ranks_are_dealt_out_by_cost():
    placed = place(COSTS, ranks=6, most=128)
    assert {name: len(ranks) for name, ranks in placed.items()} == {"linf": 3, "l2": 2, "natural": 1}
    assert sorted(rank for ranks in placed.values() for rank in ranks) == list(range(6))
    assert {name: len(ranks) for name, ranks in place({"a": 1.0}, ranks=5, most=3).items()} == {"a": 3}


@given(st.lists(st.floats(0.5, 20), min_size=1, max_size=6), st.integers(1, 4))
def test_no_packing_is_better(costs, ranks):
    named = {f"learner{index}": cost for index, cost in enumerate(costs)}
    if ranks > len(costs):
        return
    best = min(
        max(sum(c for c, r in zip(costs, where, strict=True) if r == rank) for rank in range(ranks))
        for where in product(range(ranks), repeat=len(costs))
    )
    assert max(loads(place(named, ranks=ranks, most=9), named).values()) == pytest.approx(best)


def test_ten_learners_on_four_ranks_are_placed_at_once():
    costs = {f"l{n}": 11.0 if n else 1.0 for n in range(10)}
    assert max(loads(place(costs, ranks=4, most=128), costs).values()) == 33


def test_phases_follow_who_is_live():
    """With the printed γ only linf is live for the first 80 of 120 epochs."""
    plan = build_plan(load_recipe("cifar10-resnet18-generalist-t"), 390)
    first, second = phases(plan, COSTS, ranks=3, batch_size=128)
    assert (first.first_epoch, first.epochs, second.first_epoch, second.epochs) == (0, 80, 80, 40)
    assert first.ranks["linf"] == (0, 1, 2)
    assert {name: len(ranks) for name, ranks in second.ranks.items()} == {"linf": 1, "l2": 1, "natural": 1}
    assert second.load == 11
    serial = 80 * 11 + 40 * 23
    assert speed_up([first, second]) == pytest.approx(serial / (80 * 11 / 3 + 40 * 11))
    assert speed_up(phases(plan, COSTS, ranks=1, batch_size=128)) == 1
    assert speed_up([Phase(0, 1, {}, {})]) == 1
