"""What a method becomes when its own idea is switched off: another method, bit for bit."""

import copy
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generalist import Learner, Threat, build_model
from generalist.attacks import ascend, cross_entropy
from generalist.core.types import Batch, step_context
from generalist.mixing import Mix
from generalist.objectives import make_objective, perturbed_weights
from generalist.objectives.multi_norm import steepest_of_all
from generalist.training.learner import ema_

LINF = {"threat": "linf:1/10", "steps": 4}


@pytest.fixture
def model():
    return build_model("small_cnn", classes=3, channels=1, size=8, width=4).train()


def images(count=12, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)), torch.arange(count) % 3


def gradients(name, options, model, *, progress=0.0, awp=None):
    """The loss and all gradients of one step."""
    model, (x, y) = copy.deepcopy(model), images()
    context = step_context("same", ids=torch.arange(12), progress=progress)
    loss = make_objective(name, options)(model, x, y, context=context)
    if awp is None:
        loss().total.backward()
    else:
        with perturbed_weights(model, loss, awp, context=context):
            loss().total.backward()
    return [tensor for p in model.parameters() for tensor in (p.grad, p.detach())] + list(model.buffers())


def alike(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_trades_without_beta_is_natural_training(model):
    assert alike(gradients("trades", {**LINF, "beta": 0}, model), gradients("natural", {}, model))
    assert not alike(gradients("trades", {**LINF, "beta": 1}, model), gradients("natural", {}, model))


def test_fat_with_all_the_patience_is_adversarial_training(model):
    at = gradients("adversarial", LINF, model)
    assert alike(gradients("fat", {**LINF, "patience": (4, 4, 4), "noise": 0}, model), at)
    assert not alike(gradients("fat", {**LINF, "patience": (0, 0, 0), "noise": 0}, model), at)


@pytest.mark.parametrize("name", ["average", "max"])
def test_one_threat_alone_is_adversarial_training(name, model):
    assert alike(gradients(name, {"threats": ["linf:1/10"], "steps": 4}, model), gradients("adversarial", LINF, model))


def test_agr_before_its_start_is_adversarial_training(model):
    at = gradients("adversarial", LINF, model)
    assert alike(gradients("agr", LINF, model, progress=0.7), at)
    assert not alike(gradients("agr", LINF, model, progress=0.8), at)


def test_weights_that_are_not_perturbed_change_nothing(model):
    for name, options in (("adversarial", LINF), ("trades", LINF)):
        assert alike(gradients(name, options, model, awp=0.0), gradients(name, options, model))
    tiny, none = gradients("adversarial", LINF, model, awp=1e-12), gradients("adversarial", LINF, model)
    for a, b in zip(tiny, none, strict=True):  # the ascent's own pass leaves no trace either
        torch.testing.assert_close(a, b)
    assert not alike(gradients("adversarial", LINF, model, awp=0.01), none)


def test_half_half_is_the_mean_of_the_two_losses(model):
    model, (x, y) = model.eval(), images()
    now = step_context("same", ids=torch.arange(12))
    at, half = (
        make_objective("adversarial", {**LINF, "beta": beta})(model, x, y, context=copy.deepcopy(now))().total
        for beta in (1.0, 0.5)
    )
    assert torch.equal(half, 0.5 * at + 0.5 * F.cross_entropy(model(x), y))


@pytest.mark.parametrize("text", ["linf:1/10", "l2:1/2", "l1:2"])
def test_msd_of_one_norm_is_pgd_that_keeps_its_best_point(text, model):
    model, (x, y), threat = model.eval(), images(), Threat.parse(text)
    point, best, best_loss = x, x, torch.full((len(y),), -torch.inf)
    for _ in range(6):
        point = point.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(point), y).sum(), point)
        point = ascend(point.detach(), x, gradient, threat=threat, step_size=threat.radius / 4)
        loss = cross_entropy(model(point), y).detach()
        better = loss > best_loss
        best, best_loss = torch.where(better[:, None, None, None], point, best), torch.where(better, loss, best_loss)
    got = steepest_of_all(model, x, y, threats=(threat,), steps=6)
    torch.testing.assert_close(got, best, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "options"), [("trades", LINF), ("mart", LINF)])
def test_one_learner_is_that_method_with_an_average(name, options, model):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    start = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    learner = Learner("only", model, make_objective(name, options), sgd, lr=0.1, schedule=lambda progress: 1.0)
    mix, average = Mix(start, ["only"]), {key: tensor.clone() for key, tensor in start.items()}
    for step in range(5):
        x, y = images(seed=step)
        learner.step(Batch(x, y, torch.arange(12)), progress=Fraction(step, 5), key=("run", step))
        mix.accumulate_({"only": learner.mixed}, weights={"only": 1.0}, decay=0.9)
        ema_(average, learner.tree, 0.9)
    for key, tensor in mix.state({"only": learner.mixed}).items():
        torch.testing.assert_close(tensor, average[key], rtol=1e-5, atol=1e-6)
        assert not torch.equal(tensor, start[key])


def test_a_step_of_a_companion_does_not_touch_the_model_and_the_other_way_round():
    """LBGAT's guide and the model share nothing but the optimizer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    objective = make_objective("lbgat", {**LINF, "beta": 0})
    objective.attach_(model)
    x, y = images()
    terms = objective(model, x, y, context=step_context("same", ids=torch.arange(12)))()
    terms.total.backward()
    assert all(p.grad.abs().sum() > 0 for p in (*model.parameters(), *objective.parameters()))
    assert not {id(p) for p in model.parameters()} & {id(p) for p in objective.parameters()}
