"""The linear form against the textbook recursion, and what a global learner is made of."""

import itertools
from fractions import Fraction as Fr

import pytest
import torch
from torch import nn

from generalist import Batch, LossTerms
from generalist.mixing import REST, WHOLE, ByName, Mix, MixPlan, OverDepth, Points, Share, parts_of
from generalist.training.learner import Learner
from generalist.training.state import TrainState

NAMES = ("linf", "natural", "l2")
STEPS, PER_EPOCH = 50, 5


def gammas(count):
    falling = Points((Fr(0), Fr(1, 3), Fr(2, 3), Fr(1)), (1.0, 1.0, 0.8, 0.1))
    return dict(zip(NAMES, {1: [REST], 2: [falling, REST], 3: [falling, Share(0.5), REST]}[count], strict=False))


def network():
    """With BatchNorm: float and integer buffers are mixed too."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def batch(step):
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def task_loss(index, model, x):
    return (model(x) - float(index)).square().mean()


def textbook(count, *, averaging, warmup, redistribute, plan):
    """SPEC's recursion, written naively: every learner, then θ_g ← d·θ_g + (1−d)·Σ γ·w, then the reset."""
    start = network().state_dict()
    models = [network() for _ in range(count)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    theta = {k: v.clone() for k, v in start.items()}
    averages = [{k: v.clone() for k, v in start.items()} for _ in models]
    for step in range(STEPS):
        d = min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
        weights = list(plan.weights(step).values())
        for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            task_loss(index, model.train(), batch(step)).backward()
            optimizer.step()
            for key, value in model.state_dict().items():
                if value.is_floating_point():
                    averages[index][key] = d * averages[index][key] + (1 - d) * value
        sources = averages if averaging else [m.state_dict() for m in models]
        for key, value in theta.items():
            if value.is_floating_point():
                theta[key] = d * value + (1 - d) * sum(w * s[key] for w, s in zip(weights, sources, strict=True))
            else:
                theta[key] = models[0].state_dict()[key].clone()
        epoch = (step + 1) / PER_EPOCH
        if count > 1 and redistribute and epoch == int(epoch) and epoch >= 4 and epoch % 2 == 0 and step + 1 < STEPS:
            for index, model in enumerate(models):
                model.load_state_dict(theta)
                optimizers[index].state.clear()
                averages[index] = {k: v.clone() for k, v in theta.items()}
    return theta


def ours(count, *, averaging, plan, parts=None, trained=None):
    def make(index, name):
        def objective(model, x, y, *, context):
            return lambda: LossTerms(task_loss(index, model, x))

        optimizer = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)  # noqa: E731
        return Learner(
            name, network(), objective, optimizer, lr=0.05, schedule=lambda p: 1.0, weight_averaging=averaging,
            trained=(trained or {}).get(name),
        )  # fmt: skip

    learners = [make(index, name) for index, name in enumerate(NAMES[:count])]
    state = TrainState(learners, network(), parts=parts)
    for step in range(STEPS):
        x = batch(step)
        for learner in learners:
            b = Batch(x, torch.zeros(8, dtype=torch.long), torch.arange(8))
            learner.step(b, progress=plan.progress(step), key=(step,))
            learner.update_average_(plan.decay(step))
        state.mix_(weights=plan.weights_by_part(step), decay=plan.decay(step))
        if receivers := plan.receivers(step):
            theta = {k: v.clone() for k, v in state.materialise_global_().state_dict().items()}
            for name in receivers:
                state.learners[name].reset_(theta, momentum=True, averages=True)
    return state.materialise_global_().state_dict()


@pytest.mark.parametrize(
    ("count", "averaging", "warmup", "redistribute"), list(itertools.product((1, 2, 3), *[(False, True)] * 3))
)
def test_fifty_steps_equal_the_textbook(count, averaging, warmup, redistribute):
    plan = MixPlan(
        gammas(count), epochs=STEPS // PER_EPOCH, steps_per_epoch=PER_EPOCH, decay_limit=0.9, decay_warmup=warmup,
        start_epoch=4, every_epochs=2, redistribution="boundary" if redistribute else "never",
    )  # fmt: skip
    expected = textbook(count, averaging=averaging, warmup=warmup, redistribute=redistribute, plan=plan)
    actual = ours(count, averaging=averaging, plan=plan)
    assert expected.keys() == actual.keys()
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value, atol=1e-6, rtol=0, msg=lambda m, key=key: f"{key}: {m}")
    moved = torch.cat([(expected[k] - v).flatten() for k, v in network().state_dict().items() if v.is_floating_point()])
    assert moved.abs().max() > 0.05, "the test would not notice a mix that never moves"


def test_one_learner_gives_its_plain_ema():
    mix = Mix({"w": torch.zeros(2)}, ["only"])
    ema = torch.zeros(2)
    for step in range(20):
        w = torch.full((2,), float(step))
        mix.accumulate_({"only": {"w": w}}, weights={"only": 1.0}, decay=0.9)
        ema = 0.9 * ema + 0.1 * w
    torch.testing.assert_close(mix.state({"only": {"w": w}})["w"], ema)


def test_tensors_are_paired_by_name_and_integers_copied_from_the_learner_that_weighs_most():
    start = {"a": torch.zeros(1), "b": torch.zeros(1), "n": torch.tensor(0)}
    mix = Mix(start, ["p", "q"])
    trees = {
        "p": {"a": torch.ones(1), "b": torch.full((1,), 2.0), "n": torch.tensor(5)},
        "q": {"n": torch.tensor(9), "b": torch.full((1,), 4.0), "a": torch.full((1,), 3.0)},
    }
    mix.accumulate_(trees, weights={"p": 0.25, "q": 0.75}, decay=0.5)
    state = mix.state(trees)
    assert (state["a"].item(), state["b"].item(), state["n"].item()) == (1.25, 1.75, 9)
    mix.accumulate_(trees, weights={"p": 1.0, "q": 0.0}, decay=0.5)
    assert mix.state(trees)["n"].item() == 5
    assert state["n"].dtype == torch.int64


def test_a_learner_of_zero_weight_is_not_even_read():
    mix = Mix({"a": torch.zeros(1)}, ["p", "q"])
    mix.accumulate_(
        {"p": {"a": torch.ones(1)}, "q": {"a": torch.tensor([float("nan")])}}, weights={"p": 1.0, "q": 0.0}, decay=0.5
    )
    assert mix.state({})["a"].item() == 0.5


FALLING = Points((Fr(0), Fr(1, 3), Fr(2, 3), Fr(1)), (0.6, 0.6, 0.5, 0.1))
QUARTER = Points((Fr(0),), (0.25,))
HEAD, FIRST, NORM = (
    ("2.weight", "2.bias"),
    ("0.weight", "0.bias"),
    tuple(k for k in network().state_dict() if k[0] == "1"),
)
NOTHING = Points((Fr(0),), (0.0,))
LESS = Points(FALLING.at, tuple(0.2 * value for value in FALLING.values))
BY_MODULE = {
    # γ as a recipe gives it, what the learners train, and what γ is by tensor
    "filter": (
        {"linf": REST, "natural": ByName((("2", FALLING), ("0.bias", QUARTER)))}, {},
        {HEAD: {"linf": REST, "natural": FALLING}, ("0.bias",): {"linf": REST, "natural": QUARTER},
         ("0.weight", *NORM): {"linf": REST, "natural": NOTHING}},
    ),
    "depth": (
        {"linf": REST, "natural": OverDepth((0.2, 1.0), FALLING)}, {},
        {HEAD: {"linf": REST, "natural": FALLING}, (*FIRST, *NORM): {"linf": REST, "natural": LESS}},
    ),
    "partial": (
        {"linf": REST, "natural": FALLING}, {"natural": HEAD},
        {HEAD: {"linf": REST, "natural": FALLING}, (*FIRST, *NORM): {"linf": REST}},
    ),
    "three": (
        {"linf": REST, "natural": FALLING, "l2": ByName((("*", Share(0.5)), ("2.bias", QUARTER)))},
        {"natural": HEAD, "l2": (*NORM, *HEAD)},
        {("2.weight",): {"linf": REST, "natural": FALLING, "l2": Share(0.5)},
         ("2.bias",): {"linf": REST, "natural": FALLING, "l2": QUARTER},
         NORM: {"linf": REST, "l2": Share(0.5)}, FIRST: {"linf": REST}},
    ),
}  # fmt: skip


def textbook_by_tensor(names, trained, gammas, *, averaging, plan):
    """The recursion for every tensor alone, with its own γ; what a learner does not train stays as it was."""
    models = {name: network() for name in names}
    for name, own in trained.items():
        for key, parameter in models[name].named_parameters():
            parameter.requires_grad_(key in own)

    def fresh(name):
        return torch.optim.SGD([p for p in models[name].parameters() if p.requires_grad], lr=0.05, momentum=0.9)

    optimizers = {name: fresh(name) for name in names}
    theta = {k: v.clone() for k, v in network().state_dict().items()}
    averages = {name: {k: v.clone() for k, v in theta.items()} for name in names}
    weigh = {key: MixPlan(by_name, epochs=STEPS // PER_EPOCH, steps_per_epoch=PER_EPOCH).weights
             for keys, by_name in gammas.items() for key in keys}  # fmt: skip
    for step in range(STEPS):
        d = min(0.9, (1 + step) / (10 + step))
        for index, name in enumerate(names):
            model = models[name].train()
            model[1].train(name not in trained or "1.running_mean" in trained[name])
            optimizers[name].zero_grad()
            task_loss(index, model, batch(step)).backward()
            optimizers[name].step()
            for key, value in model.state_dict().items():
                old = averages[name][key]
                averages[name][key] = d * old + (1 - d) * value if value.is_floating_point() else value.clone()
        sources = averages if averaging else {name: model.state_dict() for name, model in models.items()}
        for key, old in theta.items():
            weights = weigh[key](step)
            if old.is_floating_point():
                theta[key] = d * old + (1 - d) * sum(w * sources[name][key] for name, w in weights.items())
            else:
                theta[key] = sources[max(weights, key=weights.get)][key].clone()
        if plan.redistributes_after(step):
            for name in names:
                models[name].load_state_dict(theta)
                optimizers[name] = fresh(name)
                averages[name] = {k: v.clone() for k, v in theta.items()}
    return theta


@pytest.mark.parametrize(
    ("case", "averaging", "redistribute"), list(itertools.product(BY_MODULE, *[(False, True)] * 2))
)
def test_every_tensor_with_its_own_gamma_equals_the_textbook(case, averaging, redistribute):
    given, trained, gammas = BY_MODULE[case]
    parts = parts_of(network(), given, trained)
    assert {frozenset(p.tensors): dict(p.gammas) for p in parts.values()} == {
        frozenset(k): g for k, g in gammas.items()
    }
    plan = MixPlan(
        dict.fromkeys(given, REST), epochs=STEPS // PER_EPOCH, steps_per_epoch=PER_EPOCH, decay_limit=0.9,
        start_epoch=4, every_epochs=2, redistribution="boundary" if redistribute else "never",
        parts={name: part.gammas for name, part in parts.items()},
    )  # fmt: skip
    expected = textbook_by_tensor(list(given), trained, gammas, averaging=averaging, plan=plan)
    tensors = {name: part.tensors for name, part in parts.items()}
    actual = ours(len(given), averaging=averaging, plan=plan, parts=tensors, trained=trained)
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value, atol=1e-6, rtol=0, msg=lambda m, key=key: f"{key}: {m}")
        if key != "0.bias":  # which BatchNorm takes out again
            assert not torch.equal(value, network().state_dict()[key]), f"{key} never moved"


@pytest.mark.parametrize("count", [2, 3])
def test_parts_that_are_mixed_alike_give_the_bits_of_the_whole(count):
    options = {"epochs": STEPS // PER_EPOCH, "steps_per_epoch": PER_EPOCH, "start_epoch": 4, "every_epochs": 2}
    keys = list(network().state_dict())
    whole = ours(count, averaging=True, plan=MixPlan(gammas(count), **options))
    named = ours(count, averaging=True, plan=MixPlan(gammas(count), **options), parts={WHOLE: keys})
    apart = MixPlan(gammas(count), **options, parts={"a": gammas(count), "b": gammas(count)})
    parted = ours(count, averaging=True, plan=apart, parts={"a": keys[:3], "b": keys[3:]})
    for key, value in whole.items():
        assert torch.equal(value, parted[key])
        assert torch.equal(value, named[key])


def test_one_part_adds_up_as_the_mix_itself_does():
    """Bit for bit what mixing was before there were parts: one accumulator per learner over all tensors."""
    made = network()
    learner = lambda name: Learner(  # noqa: E731
        name, network(), lambda m, x, y, *, context: lambda: LossTerms(task_loss(len(name), m, x)),
        lambda p: torch.optim.SGD(p, lr=0.05), lr=0.05, schedule=lambda p: 1.0,
    )  # fmt: skip
    state = TrainState([learner("linf"), learner("natural")], network())
    mix = Mix(made.state_dict(), ["linf", "natural"])
    for step in range(20):
        for each in state.learners.values():
            each.step(Batch(batch(step), torch.zeros(8).long(), torch.arange(8)), progress=Fr(0), key=(step,))
        weights = {"linf": 0.3, "natural": 0.7}
        mix.accumulate_({n: a.tree for n, a in state.learners.items()}, weights=weights, decay=0.9)
        state.mix_(weights={WHOLE: weights}, decay=0.9)
    expected, actual = (
        mix.state({n: a.tree for n, a in state.learners.items()}),
        state.materialise_global_().state_dict(),
    )
    assert all(torch.equal(expected[key], actual[key]) for key in expected)


def test_integers_come_from_the_learner_that_weighs_most_of_those_that_train_the_part():
    """The natural learner weighs most, and does not train BatchNorm: the counter is that of linf."""
    given, trained = {"linf": REST, "natural": Points((Fr(0),), (0.9,))}, {"natural": HEAD}
    parts = parts_of(network(), given, trained)
    plan = MixPlan(given, epochs=STEPS // PER_EPOCH, steps_per_epoch=PER_EPOCH, redistribution="never",
                   parts={name: part.gammas for name, part in parts.items()})  # fmt: skip
    found = ours(2, averaging=False, plan=plan, parts={n: p.tensors for n, p in parts.items()}, trained=trained)
    assert found["1.num_batches_tracked"].item() == STEPS
    assert plan.weights(0) == {"linf": 1.0, "natural": 0.9}


def test_a_part_keeps_accumulators_only_of_those_that_train_it():
    """In an order that is the same in every process: ranks add them up as one long tensor."""
    parts = parts_of(network(), {"linf": REST, "natural": FALLING}, {"natural": HEAD})
    learner = lambda name, trained: Learner(  # noqa: E731
        name, network(), lambda m, x, y, *, context: None, lambda p: torch.optim.SGD(p, lr=0.1), lr=0.1,
        schedule=lambda p: 1.0, trained=trained,
    )  # fmt: skip
    state = TrainState(
        [learner("linf", None), learner("natural", HEAD)], network(), parts={n: p.tensors for n, p in parts.items()}
    )
    shares = {
        name: {key for mix in state.mixes.values() for key in mix.shares.get(name, ())} for name in state.learners
    }
    assert {name: list(mix.start) for name, mix in state.mixes.items()} == {
        n: list(p.tensors) for n, p in parts.items()
    }
    assert shares["natural"] == set(HEAD)
    assert shares["linf"] == {key for key, value in network().state_dict().items() if value.is_floating_point()}
