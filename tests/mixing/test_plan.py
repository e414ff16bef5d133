from fractions import Fraction as Fr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generalist import UserError
from generalist.mixing import REST, MixPlan, Points, Share
from generalist.training.placement import phases

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


LATE = {"linf": REST, "natural": Points((Fr(4, 5), Fr(1)), (0.0, 0.5))}


def late(**changes):
    options = {"epochs": 10, "steps_per_epoch": 4, "redistribution": "never",
               "windows": {"linf": (0, 8), "natural": (8, 10)}}  # fmt: skip
    return MixPlan(LATE, **(options | changes))


def test_a_learner_is_trained_in_its_window_alone():
    plan = late()
    assert [step for step in range(40) if plan.is_active("linf", step)] == list(range(32))
    assert [step for step in range(40) if plan.is_active("natural", step)] == list(range(32, 40))
    assert [plan.active_epochs(name) for name in LATE] == [8, 2]
    assert [plan.active_epochs(name, since=7) for name in LATE] == [1, 2]
    assert [plan.is_active_in_epoch("natural", epoch) for epoch in (7, 8)] == [False, True]
    assert [step for step in range(40) if late(train_idle=True).is_active("linf", step)] == list(range(32))


def test_where_a_learner_starts_those_that_start_and_end_receive_the_global_model():
    assert {s: late().receivers(s) for s in range(40) if late().receivers(s)} == {31: ("linf", "natural")}
    assert [late().redistributes_in(epoch) for epoch in range(1, 11)] == [epoch == 8 for epoch in range(1, 11)]
    apart = late(windows={"linf": (0, 9), "natural": (8, 10)})
    assert {s: apart.receivers(s) for s in range(40) if apart.receivers(s)} == {31: ("natural",)}
    three = MixPlan({**LATE, "l2": Points((Fr(0),), (0.0,))}, epochs=10, steps_per_epoch=4, redistribution="never",
                    windows={"linf": (0, 10), "natural": (8, 10), "l2": (0, 5)})  # fmt: skip
    assert {s: three.receivers(s) for s in range(40) if three.receivers(s)} == {31: ("natural",)}


@pytest.mark.parametrize("mode", ["boundary", "every_step"])
def test_a_redistribution_reaches_only_learners_in_their_window(mode):
    plan = late(redistribution=mode, start_epoch=0, every_epochs=2, windows={"linf": (0, 6), "natural": (4, 10)})
    for step in range(plan.steps - 1):
        epoch = (step + 1) // 4
        due = step // 4 % 2 == 0 and step // 4 > 0 if mode == "every_step" else (step + 1) % 8 == 0
        wanted = {name for name in LATE if due and plan.windows[name][0] <= epoch < plan.windows[name][1]}
        wanted |= {"natural"} if step == 15 else set()
        assert set(plan.receivers(step)) == wanted, step
    assert plan.receivers(plan.steps - 1) == ()


def test_who_starts_or_ends_with_a_step_is_known():
    plan = late(windows={"linf": (0, 9), "natural": (8, 10)})
    found = {name: [step for step in range(40) if plan.starts_or_ends(name, step)] for name in LATE}
    assert found == {"linf": [35], "natural": [31, 39]}


@pytest.mark.parametrize(
    "gamma",
    [0.5, Points((Fr(7, 10), Fr(1)), (0.0, 0.5)), Points((Fr(79, 100), Fr(4, 5)), (0.5, 0.0)),
     Points((Fr(0), Fr(31, 80), Fr(79, 200), Fr(17, 40), Fr(1)), (0.0, 0.0, 0.9, 0.0, 0.0))],
)  # fmt: skip
def test_gamma_of_a_learner_that_has_not_started_is_refused(gamma):
    """The last of them is positive at a single step."""
    given = Points((Fr(0),), (gamma,)) if isinstance(gamma, float) else gamma
    with pytest.raises(UserError, match="'natural' starts after epoch 8; its gamma must be 0 until then, got"):
        MixPlan({"linf": REST, "natural": given}, epochs=10, steps_per_epoch=4, windows={"natural": (8, 10)})


def test_gamma_that_is_positive_between_two_steps_only_is_none():
    between = Points((Fr(101, 200), Fr(41, 80), Fr(104, 200)), (0.0, 0.9, 0.0))  # of 40 steps: 20.2, 20.5 and 20.8
    MixPlan({"linf": REST, "natural": between}, epochs=10, steps_per_epoch=4, windows={"natural": (8, 10)})


@pytest.mark.parametrize(
    ("windows", "says"),
    [({"linf": (1, 10), "natural": (8, 10)}, "no learner is trained from the start"),
     ({"linf": (0, 7), "natural": (8, 10)}, "no learner is trained after epoch 7"),
     ({"linf": (0, 8), "natural": (8, 9)}, "no learner is trained after epoch 9")],
)  # fmt: skip
def test_an_epoch_in_which_nobody_is_trained_is_refused(windows, says):
    with pytest.raises(UserError, match=says):
        late(windows=windows)


def test_phases_follow_the_windows():
    plan = late(windows={"linf": (0, 9), "natural": (8, 10)})
    found = phases(plan, {"linf": 11.0, "natural": 1.0}, ranks=2, batch_size=8)
    assert [(p.first_epoch, p.epochs, sorted(p.costs)) for p in found] == [
        (0, 8, ["linf"]), (8, 1, ["linf", "natural"]), (9, 1, ["natural"]),
    ]  # fmt: skip
    assert [p.ranks["linf"] for p in found] == [(0, 1), (0,), (0,)]
    assert [p.ranks["natural"] for p in found] == [(0,), (1,), (0, 1)]


@st.composite
def windowed(draw):
    """Two learners with windows that cover training; gamma of the second is 0 before it starts."""
    start, end = draw(st.integers(0, 9)), draw(st.integers(1, 10))
    values = draw(st.lists(st.sampled_from([0.0, 0.4, 1.0]), min_size=3, max_size=3))
    at = (Fr(start, 10), Fr(start, 10) + Fr(10 - start, 20), Fr(1))
    options = {
        "redistribution": draw(st.sampled_from(["boundary", "every_step", "never"])),
        "start_epoch": draw(st.integers(0, 10)), "every_epochs": draw(st.integers(1, 4)),
        "full_reset": {"a": draw(st.booleans()), "b": draw(st.booleans())},
    }  # fmt: skip
    gammas = {"a": REST, "b": Points(at, (0.0 if start else values[0], *values[1:]))}
    return gammas, {"a": (0, max(end, start)), "b": (start, 10)}, options


@given(windowed())
def test_what_is_idle_in_a_window_cannot_influence_the_global_model(case):
    """Numbers stand for the learners' weights: each step draws a new one from the old, as training does."""
    gammas, windows, options = case

    def run(train_idle):
        plan = MixPlan(gammas, epochs=10, steps_per_epoch=3, windows=windows, train_idle=train_idle, **options)
        carried, theta = {"a": (1, 0), "b": (1, 0)}, 1.0  # a weight, and what a full reset clears
        active = dict.fromkeys(carried, 0)
        for step in range(plan.steps):
            for index, name in enumerate(carried):
                if plan.is_active(name, step):
                    active[name] += 1
                    weight, momentum = carried[name]
                    momentum = (momentum * 5 + step * 7 + index) % 11
                    carried[name] = (weight * 0.9 + momentum, momentum)
            weights = plan.weights(step)
            theta = 0.5 * theta + 0.5 * sum(weights[name] * carried[name][0] for name in carried if weights[name])
            for name in plan.receivers(step):
                everything = plan.full_reset[name] or plan.starts_or_ends(name, step)
                carried[name] = (theta, 0 if everything else carried[name][1])
        assert {name: plan.active_epochs(name) for name in active} == {
            n: pytest.approx(c / 3) for n, c in active.items()
        }
        for name in active:
            for epoch in range(10):
                steps = [plan.is_active(name, step) for step in range(3 * epoch, 3 * epoch + 3)]
                assert plan.is_active_in_epoch(name, epoch) == any(steps)
        return theta

    assert run(False) == run(True)
