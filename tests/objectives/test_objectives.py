"""The contract of every objective: found by the registry, held by all."""

import copy

import pytest
import torch

from generalist import OBJECTIVES, build_model
from generalist.core.types import step_context
from generalist.objectives import ObjectiveModule, carries_state, make_objective, networks_needed

ONE, TWO = {"threat": "linf:1/10"}, {"threats": ["linf:1/10", "l2:1/2"]}
OPTIONS = {
    "natural": {},
    "corrupted": {},
    "adversarial": {**ONE, "steps": 3},
    "trades": {**ONE, "steps": 3},
    "hat": {**ONE, "steps": 3},
    "lbgat": {**ONE, "steps": 3},
    "mart": {**ONE, "steps": 3},
    "fat": {**ONE, "steps": 3},
    "iat": {**ONE, "steps": 3},
    "rst": {**ONE, "steps": 3},
    "score": {**ONE, "steps": 3, "threshold": 0.0},
    "agr": {**ONE, "steps": 3, "start": 0, "longest": 10.0},
    "part": {**ONE, "steps": 3, "start": 0},
    "fast": ONE,
    "average": {**TWO, "steps": 3},
    "max": {**TWO, "steps": 3},
    "msd": {**TWO, "steps": 3},
    "e-at": {"threats": ["linf:1/10", "l1:2"], "steps": 3},
    "ramp": {**TWO, "steps": 3},
    "rmc": {**TWO, "steps": 3},
}


def network(**options):
    return build_model("small_cnn", classes=3, channels=1, size=8, **{"width": 4, **options})


def made(name, model):
    networks = {need: copy.deepcopy(model) for need in networks_needed(name)}
    objective = make_objective(name, OPTIONS[name], networks=networks)
    objective.attach_(model)
    return objective


def now(count, step=0):
    return step_context("test", step, ids=torch.arange(count), progress=0.5)


def easy(count):
    """Three classes, one bright row each."""
    y = torch.arange(count) % 3
    x = 0.3 * torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[torch.arange(count), 0, y * 2] += 0.7
    return x, y


def test_every_registered_objective_is_under_contract():
    assert set(OPTIONS) == set(OBJECTIVES.names())


@pytest.mark.parametrize("name", OPTIONS)
def test_every_objective_has_its_hooks(name):
    model = network()
    objective = made(name, model)
    assert isinstance(objective, ObjectiveModule)
    objective.step_ended_(usable=True, context=now(1))
    objective.epoch_ended_(model)
    objective.model_replaced_(model)
    assert next(iter(objective.variants(model))) is not None


def test_only_state_that_outlives_a_reset_keeps_a_learner_busy():
    assert {name for name in OPTIONS if carries_state(name)} == {"e-at", "fast", "lbgat"}


@pytest.mark.parametrize("name", OPTIONS)
def test_finite_loss_and_a_gradient_for_every_parameter_even_for_one_image(name):
    model = network()
    objective = made(name, model)
    for count in (1, 8):
        model.zero_grad()
        terms = objective(model, *easy(count), context=now(count))()
        terms.total.backward()
        assert torch.isfinite(terms.total)
        assert all(not value.requires_grad for value in terms.parts.values())
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", OPTIONS)
def test_same_moment_same_loss_and_the_loss_can_be_taken_twice(name):
    model = network().eval()
    objective, (x, y) = made(name, model), easy(16)
    loss = objective(model, x, y, context=now(16))
    first = loss().total
    assert torch.equal(first, loss().total)
    if name != "e-at":  # its draw depends on the errors seen so far
        assert torch.equal(first, objective(model, x, y, context=now(16))().total)


@pytest.mark.parametrize("name", OPTIONS)
def test_learns_an_easy_set_in_a_few_steps(name):
    model = network(width=8)
    objective, (x, y) = made(name, model), easy(60)
    optimizer = torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.05, momentum=0.9)
    for step in range(40):
        model.train()
        optimizer.zero_grad()
        objective(model, x, y, context=now(60, step))().total.backward()
        optimizer.step()
    model.eval()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


@pytest.mark.parametrize("name", OPTIONS)
def test_the_model_is_left_as_it_was_by_the_attack(name):
    model = network().train()
    objective, (x, y) = made(name, model), easy(16)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    flags = [(module.training, [p.requires_grad for p in module.parameters()]) for module in model.modules()]
    objective(model, x, y, context=now(16))
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in before.items())
    assert flags == [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()]
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
