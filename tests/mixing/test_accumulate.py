"""The linear form against the textbook recursion, and what a global learner is made of."""

import itertools
from fractions import Fraction as Fr

import pytest
import torch
from torch import nn

from generalist import Batch, LossTerms
from generalist.mixing import REST, Mix, MixPlan, Points, Share
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


def ours(count, *, averaging, plan):
    def make(index, name):
        def objective(model, x, y, *, context):
            return lambda: LossTerms(task_loss(index, model, x))

        optimizer = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)  # noqa: E731
        return Learner(
            name, network(), objective, optimizer, lr=0.05, schedule=lambda p: 1.0, weight_averaging=averaging
        )

    learners = [make(index, name) for index, name in enumerate(NAMES[:count])]
    state = TrainState(learners, network())
    for step in range(STEPS):
        x = batch(step)
        for learner in learners:
            b = Batch(x, torch.zeros(8, dtype=torch.long), torch.arange(8))
            learner.step(b, progress=plan.progress(step), key=(step,))
            learner.update_average_(plan.decay(step))
        state.mix_(weights=plan.weights_by_part(step), decay=plan.decay(step))
        if plan.redistributes_after(step):
            theta = {k: v.clone() for k, v in state.materialise_global_().state_dict().items()}
            for learner in learners:
                learner.reset_(theta, momentum=True, averages=True)
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
