from fractions import Fraction as Fr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generalist import UserError
from generalist.mixing import REST, MixPlan, Points, Share

PRINTED = Points((Fr(0), Fr(1, 3), Fr(2, 3), Fr(1)), (1.0, 1.0, 1.0, 0.0))
T = {"linf": PRINTED, "natural": Share(0.5), "l2": REST}
RESETS = dict.fromkeys(T, True)


def printed(**changes):
    options = {"epochs": 120, "steps_per_epoch": 10, "start_epoch": 75, "every_epochs": 5, "full_reset": RESETS}
    return MixPlan(T, **(options | changes))


def test_gamma_is_the_printed_plan():
    plan = printed()
    assert plan.weights(0) == {"linf": 1.0, "natural": 0.0, "l2": 0.0}
    assert plan.weights(800) == {"linf": 1.0, "natural": 0.0, "l2": 0.0}
    assert plan.weights(1000) == {"linf": 0.5, "natural": 0.25, "l2": 0.25}
    assert plan.weights(1199)["linf"] == pytest.approx(1 / 400)


@given(st.integers(0, 1199), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_gamma_always_sums_to_one_and_is_never_negative(step, share, values):
    plan = MixPlan(
        {"a": Points(PRINTED.at, tuple(values)), "b": Share(share), "c": REST}, epochs=120, steps_per_epoch=10
    )
    weights = plan.weights(step)
    assert sum(weights.values()) == pytest.approx(1)
    assert min(weights.values()) >= 0


def test_decay_warms_up_unless_switched_off():
    assert [printed().decay(s) for s in (0, 1, 90)] == [1 / 10, 2 / 11, 91 / 100]
    assert printed().decay(10**6) == 0.999
    assert printed(decay_warmup=False).decay(0) == 0.999


def test_redistribution_at_the_boundary_of_every_fifth_epoch_from_75_but_not_the_last():
    plan = printed()
    assert [step for step in range(1200) if plan.redistributes_after(step)] == [e * 10 - 1 for e in range(75, 120, 5)]


def test_redistribution_at_every_step_of_every_fifth_epoch_as_in_the_published_code():
    plan = printed(redistribution="every_step")
    expected = [step for step in range(1199) if step // 10 >= 75 and (step // 10) % 5 == 0]
    assert [step for step in range(1200) if plan.redistributes_after(step)] == expected


@pytest.mark.parametrize("mode", ["boundary", "every_step"])
def test_a_lone_learner_is_never_reset_and_always_trained(mode):
    alone = {"linf": REST}
    plan = printed(redistribution=mode, full_reset={"linf": True})
    assert any(plan.redistributes_after(step) for step in range(plan.steps))
    plan = MixPlan(
        alone, epochs=120, steps_per_epoch=10, start_epoch=75, redistribution=mode, full_reset={"linf": True}
    )
    assert not any(plan.redistributes_after(step) for step in range(plan.steps))
    assert plan.active_epochs("linf") == 120


@pytest.mark.parametrize("mode", ["boundary", "every_step", "never"])
def test_epochs_know_their_redistributions(mode):
    plan = printed(redistribution=mode, epochs=24, start_epoch=7, every_epochs=3)
    epochs = {step // 10 + 1 for step in range(plan.steps) if plan.redistributes_after(step)}
    assert {epoch for epoch in range(1, 25) if plan.redistributes_in(epoch)} == epochs


@pytest.mark.parametrize("mode", ["boundary", "every_step", "never"])
def test_the_next_redistribution_is_the_first_one_found_by_walking(mode):
    plan = printed(redistribution=mode, epochs=24, start_epoch=7, every_epochs=3)
    steps = [step for step in range(plan.steps) if plan.redistributes_after(step)]
    for step in range(plan.steps):
        assert plan.next_redistribution(step) == next((s for s in steps if s >= step), None)


def test_learners_without_weight_are_idle_for_the_first_eighty_epochs():
    plan = printed()
    assert {name: plan.active_epochs(name) for name in T} == {"linf": 120, "natural": 40, "l2": 40}
    assert not plan.is_active("natural", 799)
    assert plan.is_active("natural", 800)


def brute_live(plan, name, step):
    """γ zero at every step from here to the one that ends in a reset."""
    for s in range(step, plan.steps):
        if plan.weights(s)[name] != 0:
            return True
        if plan.redistributes_after(s):
            return False
    return True


@pytest.mark.parametrize("mode", ["boundary", "every_step", "never"])
@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=4, max_size=4), st.integers(0, 12), st.integers(1, 4))
def test_liveness_equals_looking_at_every_step(mode, values, start, every):
    points = Points((Fr(0), Fr(1, 5), Fr(3, 5), Fr(1)), tuple(values))
    plan = MixPlan(
        {"a": points, "b": REST}, epochs=12, steps_per_epoch=3, start_epoch=start, every_epochs=every,
        redistribution=mode, full_reset={"a": True, "b": True},
    )  # fmt: skip
    for name in ("a", "b"):
        live = [plan.is_active(name, step) for step in range(plan.steps)]
        assert live == [brute_live(plan, name, step) for step in range(plan.steps)]
        assert plan.active_epochs(name) == pytest.approx(sum(live) / 3)


def test_an_epoch_is_live_where_any_of_its_steps_is():
    """γ is positive around one step inside an epoch only, and every step ends in a reset."""
    at = (Fr(0), Fr(3, 5), Fr(5, 8), Fr(13, 20), Fr(1))
    gammas = {"a": Points(at, (0.0, 0.0, 0.8, 0.0, 0.0)), "b": REST}
    plan = MixPlan(gammas, epochs=4, steps_per_epoch=20, every_epochs=1, redistribution="every_step",
                   full_reset={"a": True, "b": True})  # fmt: skip
    epochs = [[plan.is_active("a", step) for step in range(20 * e, 20 * (e + 1))] for e in range(4)]
    assert any(epochs[2])
    assert not epochs[2][0]
    assert not epochs[2][-1]
    assert [plan.is_active_in_epoch("a", e) for e in range(4)] == [any(live) for live in epochs]


def test_what_a_reset_does_not_replace_keeps_a_learner_alive():
    assert printed(full_reset={**RESETS, "natural": False}).active_epochs("natural") == 120
    assert printed(train_idle=True).active_epochs("natural") == 120
    assert printed(redistribution="never").active_epochs("natural") == 120


@pytest.mark.parametrize(
    ("gammas", "says"),
    [({"a": Points((Fr(0),), (0.3,)), "b": Points((Fr(0),), (0.3,))}, "sum to 1, got a=0.3, b=0.3"),
     ({"a": Points((Fr(0),), (0.7,)), "b": Points((Fr(0),), (0.7,)), "c": REST}, "c=-0.4"),
     ({"a": REST, "b": REST}, "only one learner"), ({"a": Share(0.5)}, "sum to 1")],
)  # fmt: skip
def test_weights_that_cannot_be_mixed_are_refused(gammas, says):
    with pytest.raises(UserError, match=says):
        MixPlan(gammas, epochs=10, steps_per_epoch=2)
