import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

from generalist import OBJECTIVES, Batch, LossTerms, build_model
from generalist.core.schedules import constant
from generalist.distributed.shared_batchnorm import share_batchnorm_
from generalist.models.modules import Patterns, replace_tensors_, select_tensors, tensor_names
from generalist.objectives import ObjectiveModule, make_objective, networks_needed, starts_itself
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


ONE, TWO = {"threat": "linf:1/10"}, {"threats": ["linf:1/10", "l2:1/2"]}
WITH = {
    "natural": {}, "corrupted": {}, "fast": ONE, "agr": {**ONE, "steps": 1, "start": 0},
    "part": {**ONE, "steps": 1, "start": 0}, "e-at": {"threats": ["linf:1/10", "l1:2"], "steps": 1},
    **{name: {**TWO, "steps": 1} for name in ("average", "max", "msd", "ramp", "rmc")},
}  # fmt: skip


def cnn():
    return build_model("small_cnn", classes=3, channels=1, size=8, width=4)


def partial(patterns=("conv5", "bn5", "fc"), *, objective=noisy, model=None, **options):
    model = model or cnn()
    bound = OPTIMIZERS.bind("sgd", {"lr": 0.1, "momentum": 0.9})
    trained = select_tensors(model, Patterns(tuple(patterns)))
    return Learner("a", model, objective, bound, lr=0.1, schedule=constant, trained=trained, **options)


def built(name):
    networks = {need: cnn() for need in networks_needed(name)}
    return make_objective(name, WITH.get(name, {**ONE, "steps": 1}), networks=networks)


def copied(tree):
    return {key: tensor.clone() for key, tensor in tree.items()}


def changed(before, after):
    return {key for key in before if not torch.equal(before[key], after[key])}


NORMS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"weight_perturbation": 0.01}, {"weight_averaging": True}])
@pytest.mark.parametrize("shared_batchnorm", [False, True])
def test_what_a_learner_does_not_train_is_as_it_was_bit_for_bit(options, shared_batchnorm):
    model = cnn()
    if shared_batchnorm:
        share_batchnorm_(model)
    learner = partial(model=model, **options)
    before = copied(learner.tree)
    for index in range(3):
        step(learner, index=index)
        learner.update_average_(0.9)
    assert changed(before, learner.tree) == set(learner.own)
    assert {f"network.bn5.{name}" for name in NORMS} <= set(learner.own)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES.names() if not starts_itself(name)])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "weight_perturbation": 0.01}], ids=["plain", "parts, AWP"])
def test_no_objective_moves_what_its_learner_does_not_train(name, options):
    """Nor does the end of an epoch, a reset, or a step that is not applied."""
    learner = partial(objective=built(name), **options)
    before = copied(learner.tree)
    for index in range(2):
        learner.step(batch(), progress=Fraction(9, 10), key=(index,))
    bad = batch()._replace(x=torch.full((12, 1, 8, 8), float("nan")))
    kept = copied(learner.tree)
    learner.step(bad, progress=Fraction(9, 10), key=(2,))
    assert learner.bad_steps == 1
    assert changed(kept, learner.tree) == set()
    learner.end_epoch_()
    assert changed(before, learner.tree) <= set(learner.own)
    assert "network.fc.weight" in changed(before, learner.tree)
    assert all(parameter.grad is None for key, parameter in learner.model.named_parameters() if key not in learner.own)
    learner.reset_(before, momentum=True, averages=True)
    assert changed(before, learner.tree) == set()


def test_the_clean_copy_of_ramp_moves_what_the_model_moves_and_no_more():
    objective = built("ramp")
    learner = partial(objective=objective)
    before = copied(objective.clean.state_dict())
    step(learner)
    assert changed(before, objective.clean.state_dict()) == set(learner.own)
    momenta = {key for key in learner.save()[0] if key.startswith("optimizer/momentum_buffer/objective/clean.")}
    trained = {key for key, _ in learner.model.named_parameters() if key in learner.own}
    assert {key.partition("clean.")[2] for key in momenta} == trained


def test_the_guide_of_lbgat_is_trained_whole():
    objective = built("lbgat")
    learner = partial(objective=objective)
    before = copied(objective.guide.state_dict())
    step(learner)
    assert changed(before, objective.guide.state_dict()) == set(before)


@pytest.mark.parametrize(
    "patterns", [("*.weight",), ("bn1.weight", "fc"), ("*.bias", "fc"), ("bn*.running_mean", "fc")]
)
def test_running_statistics_that_are_not_trained_are_used_and_kept(patterns):
    """Also where the scale beside them is trained."""
    learner = partial(patterns)
    before = copied(learner.tree)
    step(learner)
    assert changed(before, learner.tree) <= set(learner.own)
    assert not learner.model.network.bn1.training
    x = batch().x
    with torch.no_grad():
        here = learner.model.network.bn1(learner.model.network.conv1(learner.model.normalize(x)))
        expected = copy.deepcopy(learner.model.network.bn1).eval()(
            learner.model.network.conv1(learner.model.normalize(x))
        )
    assert torch.equal(here, expected)


def test_statistics_of_what_is_trained_are_measured():
    learner = partial(("bn1", "fc"))
    before = copied(learner.tree)
    step(learner)
    assert {f"network.bn1.{name}" for name in NORMS} <= changed(before, learner.tree)


def test_the_backward_pass_ends_at_the_first_module_that_is_trained():
    """Nothing of the layers before it is kept for a backward pass."""

    def kept(learner):
        sizes = []
        pack = lambda tensor: sizes.append(tuple(tensor.shape)) or tensor  # noqa: E731
        seen = {}
        hooks = [
            module.register_forward_hook(lambda m, inputs, output, name=name: seen.update({name: output.requires_grad}))
            for name, module in learner.model.network.named_children()
        ]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step(learner)
        for hook in hooks:
            hook.remove()
        return sizes, seen

    whole, seen = kept(make(cnn()))
    assert all(seen.values())
    first = whole[:3]
    part, seen = kept(partial())
    assert {name for name, graph in seen.items() if graph} - {"relu"} == {"conv5", "bn5", "fc"}
    assert len(part) < len(whole) / 2
    assert (12, 1, 8, 8) in first
    assert (12, 1, 8, 8) not in part


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_partial_learner_carries_only_what_it_trains(optimizer):
    model = cnn()
    trained = select_tensors(model, Patterns(("fc",)))
    bound = OPTIMIZERS.bind(optimizer, {"lr": 0.1})
    learner = Learner("a", model, noisy, bound, lr=0.1, schedule=constant, trained=trained, weight_averaging=True)
    step(learner)
    learner.update_average_(0.9)
    tensors, _ = learner.save()
    assert {key.rpartition("/")[2] for key in tensors} == set(trained)
    assert set(learner.average) == set(learner.mixed) == set(trained)
    everything = make(cnn(), optimizer, weight_averaging=True)
    step(everything)
    size = lambda state: sum(tensor.numel() for tensor in state.values())  # noqa: E731
    assert size(tensors) < 0.1 * size(everything.save()[0])


def test_a_partial_learner_goes_on_bit_for_bit_from_what_it_saved():
    def fresh():
        return partial(weight_averaging=True)

    first = fresh()
    step(first)
    first.update_average_(0.5)
    tensors, values = first.save()
    second = fresh()
    second.load(copied(tensors), values)
    for learner in (first, second):
        step(learner, index=1)
        learner.update_average_(0.5)
    assert changed(first.tree, second.tree) == changed(first.mixed, second.mixed) == set()


def test_the_mixed_model_has_the_running_average_of_what_is_trained():
    learner = partial(weight_averaging=True)
    step(learner)
    learner.update_average_(0.5)
    model = learner.mixed_model()
    state = model.state_dict()
    assert changed(learner.average, {key: state[key] for key in learner.average}) == set()
    assert changed(learner.frozen_tree, {key: state[key] for key in learner.frozen_tree}) == set()
    assert "network.fc.weight" in changed(learner.tree, state)
    plain = partial()
    assert plain.mixed_model() is plain.model


def test_learners_that_share_what_they_do_not_train_see_each_others_resets():
    first, second = cnn(), cnn()
    shared = {}
    for model in (first, second):
        trained = select_tensors(model, Patterns(("fc",)))
        replace_tensors_(model, shared, [key for key in tensor_names(model) if key not in trained])
    a, b = partial(("fc",), model=first), partial(("fc",), model=second)
    step(a), step(b, index=1)
    assert {key for key in a.tree if a.tree[key].data_ptr() == b.tree[key].data_ptr()} == set(a.frozen_tree)
    target = {key: torch.ones_like(tensor) for key, tensor in a.tree.items()}
    for learner in (a, b):
        learner.reset_(target, momentum=True, averages=True)
    assert torch.equal(a.model(batch().x), b.model(batch().x))
    step(a), step(b, index=1)
    assert "network.fc.weight" in changed(target, a.tree)
    assert changed(target, a.tree) | changed(target, b.tree) <= set(a.own)
