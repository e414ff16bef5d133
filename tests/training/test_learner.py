from fractions import Fraction

import pytest
import torch
from torch import nn

from generalist import Batch, LossTerms, build_model
from generalist.core.schedules import constant
from generalist.objectives import ObjectiveModule, make_objective
from generalist.training.learner import Learner
from generalist.training.optimizers import OPTIMIZERS


def batch(count=12):
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.rand(count, 1, 8, 8, generator=generator), torch.arange(count) % 3, torch.arange(count))


class Plain(nn.Module):
    """No BatchNorm, so that a split batch gives the same gradient."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 3, dtype=torch.float64)
        nn.init.normal_(self.fc.weight, generator=torch.Generator().manual_seed(0))
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        return self.fc(x.flatten(1).double())


def noisy(model, x, y, *, context):
    """Draws from the streams, so that it notices whether each image, and the batch, keeps its own."""
    x = x + 0.1 * context.generator.uniform(*x.shape[1:]) + 0.1 * context.shared.uniform(1)[0, 0]
    return lambda: LossTerms(nn.functional.cross_entropy(model(x), y), {"mean": x.mean().detach()})


def make(model, optimizer="sgd", **options):
    settings = {"lr": 0.1}
    return Learner("a", model, noisy, OPTIMIZERS.bind(optimizer, settings), lr=0.1, schedule=constant, **options)


def step(learner, data=None, index=0):
    data = data or batch()
    return learner.step(data, progress=Fraction(0), key=("step", index))


@pytest.mark.parametrize("pieces", [2, 3, 5, 12])
def test_gradient_accumulation_is_the_whole_batch(pieces):
    whole, parts = make(Plain()), make(Plain(), accumulate=pieces)
    for index in range(3):
        a, b = step(whole, index=index), step(parts, index=index)
        torch.testing.assert_close(a.total, b.total)
        torch.testing.assert_close(a.parts["mean"], b.parts["mean"])
    torch.testing.assert_close(whole.tree, parts.tree)


def test_clipping_bounds_the_step():
    free, clipped = make(Plain()), make(Plain(), clip_norm=1e-3)
    before = {key: value.clone() for key, value in free.tree.items()}
    step(free), step(clipped)
    moved = lambda learner: sum((learner.tree[k] - before[k]).square().sum() for k in before).sqrt().item()  # noqa: E731
    assert moved(clipped) == pytest.approx(0.1 * 1e-3, rel=1e-4)
    assert moved(free) > 10 * moved(clipped)


def test_the_schedule_scales_the_learning_rate():
    learner = make(Plain())
    learner.schedule = lambda progress: 0.25
    step(learner)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.names())
@pytest.mark.parametrize("averaging", [False, True])
def test_saved_and_loaded_goes_on_bit_for_bit(optimizer, averaging):
    def fresh():
        return make(
            build_model("small_cnn", classes=3, channels=1, size=8, width=4), optimizer, weight_averaging=averaging
        )

    first = fresh()
    for index in range(3):
        step(first, index=index)
        first.update_average_(0.9)
    tensors, values = first.save()
    second = fresh()
    second.load({key: value.clone() for key, value in tensors.items()}, values)
    for learner in (first, second):
        step(learner, index=3)
        learner.update_average_(0.9)
    assert all(torch.equal(first.tree[key], second.tree[key]) for key in first.tree)
    assert all(torch.equal(first.mixed[key], second.mixed[key]) for key in first.mixed)


def test_a_reset_replaces_what_it_is_told_to():
    learner = make(build_model("small_cnn", classes=3, channels=1, size=8, width=4), weight_averaging=True)
    target = {key: torch.zeros_like(value) for key, value in learner.tree.items()}
    step(learner)
    learner.update_average_(0.5)
    kept = {key: value.clone() for key, value in learner.average.items()}
    learner.reset_(target, momentum=False, averages=False)
    assert learner.optimizer.state
    assert all(torch.equal(learner.average[key], kept[key]) for key in kept)
    assert all((value == 0).all() for value in learner.model.state_dict().values())
    learner.reset_(target, momentum=True, averages=True)
    assert not learner.optimizer.state
    assert all((value == 0).all() for value in learner.average.values())


def test_an_unusable_step_changes_nothing_and_is_counted():
    learner = make(build_model("small_cnn", classes=3, channels=1, size=8, width=4))
    step(learner)
    before = {key: value.clone() for key, value in learner.tree.items()}
    bad = batch()._replace(x=torch.full((12, 1, 8, 8), float("nan")))
    for count in (1, 2):
        step(learner, bad)
        assert learner.bad_steps == count
    assert all(torch.equal(before[key], value) for key, value in learner.tree.items())
    step(learner)
    assert learner.bad_steps == 0


def test_what_an_objective_carries_is_not_spoilt_by_an_unusable_step():
    objective = make_objective("lbgat", {"threat": "linf:1/10", "steps": 1})
    model = build_model("small_cnn", classes=3, channels=1, size=8, width=4)
    learner = Learner("a", model, objective, OPTIMIZERS.bind("sgd", {"lr": 0.1}), lr=0.1, schedule=constant)
    x, y = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    learner.step(Batch(x, y, torch.arange(12)), progress=Fraction(0), key=(0,))
    before = {key: tensor.clone() for key, tensor in objective.state_dict().items()}
    learner.step(Batch(x * torch.nan, y, torch.arange(12)), progress=Fraction(0), key=(1,))
    assert learner.bad_steps == 1
    assert all(torch.equal(tensor, before[key]) for key, tensor in objective.state_dict().items())


def test_a_function_as_objective_leaves_nothing_in_a_checkpoint():
    """So checkpoints are those of before functions had hooks."""
    learner = make(Plain())
    step(learner)
    tensors, _ = learner.save()
    names = ("fc.weight", "fc.bias")
    wanted = {*(f"model/{name}" for name in names), *(f"optimizer/momentum_buffer/{name}" for name in names)}
    assert set(tensors) == wanted


def test_a_module_without_hooks_is_called_and_neither_trained_nor_saved():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, model, x, y, *, context):
            return lambda: LossTerms(self.scale * nn.functional.cross_entropy(model(x), y))

    objective = Scaled()
    learner = Learner("a", Plain(), objective, OPTIMIZERS.bind("sgd", {"lr": 0.1}), lr=0.1, schedule=constant)
    before = learner.tree["fc.weight"].clone()
    step(learner)
    assert not torch.equal(before, learner.tree["fc.weight"])
    assert objective.scale.item() == 1
    assert not any(name.startswith("objective/") for name in learner.save()[0])


def test_every_hook_of_an_objective_is_called_with_its_step():
    class Watching(ObjectiveModule):
        def __init__(self):
            super().__init__()
            self.calls = []

        def forward(self, model, x, y, *, context):
            return noisy(model, x, y, context=context)

        def attach_(self, model):
            self.calls.append("attach")

        def step_ended_(self, *, usable, context):
            self.calls.append((usable, context.progress, len(context.generator), context.share))

        def epoch_ended_(self, model):
            self.calls.append("epoch")

        def model_replaced_(self, model):
            self.calls.append("replaced")

    objective = Watching()
    learner = Learner(
        "a", Plain(), objective, OPTIMIZERS.bind("sgd", {"lr": 0.1}), lr=0.1, schedule=constant, accumulate=2
    )
    assert learner.objective is objective
    learner.step(batch(), progress=Fraction(1, 4), key=(0,))
    learner.step(batch()._replace(x=torch.full((12, 1, 8, 8), torch.nan)), progress=Fraction(1, 2), key=(1,))
    learner.end_epoch_()
    learner.reset_({key: value.clone() for key, value in learner.tree.items()}, momentum=True, averages=True)
    assert objective.calls == ["attach", (True, 0.25, 12, 1.0), (False, 0.5, 12, 1.0), "epoch", "replaced"]


def test_accumulated_slices_share_what_is_drawn_once():
    """E-AT takes one threat a batch, and its running errors move once."""
    x, y = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    errors = []
    for pieces in (1, 4):
        objective = make_objective("e-at", {"threats": ["linf:1/10", "l1:2"], "steps": 1})
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        with torch.no_grad():
            model[1].weight.copy_(torch.rand(3, 64, generator=torch.Generator().manual_seed(1)))
            model[1].bias.zero_()
        bound = OPTIMIZERS.bind("sgd", {"lr": 0.1})
        learner = Learner("a", model, objective, bound, lr=0.1, schedule=constant, accumulate=pieces)
        for index in range(4):
            learner.step(Batch(x, y, torch.arange(12)), progress=Fraction(0), key=(index,))
        errors.append(objective.errors.clone())
    torch.testing.assert_close(*errors)


def test_a_loss_far_above_the_limit_is_unusable():
    learner = make(Plain(), loss_limit=0.01)
    step(learner)
    assert learner.bad_steps == 1
