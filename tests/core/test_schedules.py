from fractions import Fraction as F

import pytest

from generalist import UserError
from generalist.core.schedules import SCHEDULES, check_points, cosine, cyclic, piecewise

PAPER = {"at": (F(0), F(1, 3), F(1, 2), F(1)), "values": (1.0, 1.0, 0.1, 0.01)}


@pytest.mark.parametrize(
    ("epoch", "value"), [(0, 1), (39, 1), (40, 1), (50, 0.55), (60, 0.1), (90, 0.055), (120, 0.01)]
)
def test_piecewise_is_the_printed_learning_rate(epoch, value):
    assert piecewise(F(epoch, 120), **PAPER) == pytest.approx(value)


def test_a_flat_stretch_is_exactly_flat():
    assert {piecewise(F(step, 46800), **PAPER) for step in range(0, 15601, 7)} == {1.0}


def test_cosine_starts_at_zero_with_a_warmup_and_ends_at_its_end():
    assert cosine(F(0), warmup=0.1) == 0
    assert cosine(F(1, 10), warmup=0.1) == pytest.approx(1)
    assert cosine(F(1, 2)) == pytest.approx(0.5)
    assert cosine(F(1), end=0.2) == pytest.approx(0.2)


def test_cyclic_rises_to_its_peak_and_falls_to_zero():
    assert [cyclic(F(k, 10), peak=0.4) for k in (0, 2, 4, 7, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize(
    ("at", "values"), [((F(0),), (1.0, 2.0)), ((), ()), ((F(1, 2), F(1, 3)), (1.0, 1.0)), ((F(0), F(2)), (1.0, 1.0))]
)
def test_breakpoints_that_make_no_sense_are_refused(at, values):
    with pytest.raises(UserError):
        check_points(at, values)


def test_a_staircase_holds_each_value_to_the_next_breakpoint():
    stairs = SCHEDULES.bind("staircase", {"at": [0, "1/2", "3/4"], "values": [1, 0.1, 0.01]})
    assert [stairs(F(n, 8)) for n in (0, 3, 4, 5, 6, 7, 8)] == [1, 1, 0.1, 0.1, 0.01, 0.01, 0.01]


def test_every_schedule_is_never_negative():
    options = {"piecewise": PAPER, "staircase": PAPER}
    for name in SCHEDULES.names():
        schedule = SCHEDULES.bind(name, options.get(name, {}))
        assert all(schedule(F(k, 97)) >= 0 for k in range(98))
