"""Whoever watches an attack hears how far it is, from the first step of a batch to the last."""

import pytest

from generalist import Threat
from generalist.attacks import apgd_t, fab_t, fmn, mim, pgd, square, watched
from generalist.attacks.progress import track
from oracles import natural_digits

SHORT = {
    pgd: {"steps": 6, "restarts": 2},
    mim: {"steps": 5},
    apgd_t: {"steps": 8},
    fab_t: {"steps": 4},
    fmn: {"steps": 6},
}


def test_nested_loops_share_the_turns_of_the_outer_ones():
    heard = []
    with watched(heard.append):
        for _ in track(range(2)):
            for turn in track(range(4)):
                if turn == 2:
                    break  # the rest of this turn is over
            list(track(range(2)))
    assert heard == [0, 0, 0.125, 0.25, 0, 0.25, 0.5, 0.5, 0.625, 0.75, 0.5, 0.75]


@pytest.mark.parametrize("attack", [*SHORT, square], ids=lambda attack: attack.__name__)
def test_every_long_attack_tells(attack):
    model, x, y = natural_digits().first(20)
    heard = []
    with watched(heard.append):
        attack(model, x, y, threat=Threat.parse("linf:1/100"), **SHORT.get(attack, {"queries": 12}))
    assert heard == sorted(heard)
    assert heard[0] == 0
    assert 0.7 < heard[-1] < 1
    assert len(set(heard)) >= 4


def test_without_a_watcher_a_loop_is_a_loop():
    assert list(track("abc")) == ["a", "b", "c"]
