"""The contract of every objective, and the formulas by hand on a two-pixel linear model."""

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generalist import OBJECTIVES, Threat, build_model
from generalist.core.rng import ImageStreams

OPTIONS = {"natural": {}, "adversarial": {"threat": "linf:1/10", "steps": 3}}


def streams(count, seed=0):
    return ImageStreams(seed, ids=torch.arange(count))


def test_every_registered_objective_is_under_contract():
    assert set(OPTIONS) == set(OBJECTIVES.names())


@pytest.mark.parametrize("name", OPTIONS)
def test_finite_loss_and_a_gradient_for_every_parameter_even_for_one_image(name):
    model = build_model("small_cnn", classes=3, channels=1, size=8, width=4)
    objective = OBJECTIVES.bind(name, OPTIONS[name])
    for count in (1, 8):
        x, y = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3
        model.zero_grad()
        terms = objective(model, x, y, generator=streams(count), epoch=0.0)
        terms.total.backward()
        assert torch.isfinite(terms.total)
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", OPTIONS)
def test_learns_an_easy_set_in_a_few_steps(name):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = 0.3 * torch.rand(60, 1, 8, 8, generator=generator)
    x[torch.arange(60), 0, y * 2] += 0.7
    model = build_model("small_cnn", classes=3, channels=1, size=8, width=8)
    objective = OBJECTIVES.bind(name, OPTIONS[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(20):
        optimizer.zero_grad()
        objective(model, x, y, generator=streams(60, step), epoch=0.0).total.backward()
        optimizer.step()
    model.eval()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


@pytest.fixture
def two_pixels():
    """Logits (0, 3a − b + 0.2) of the image (a, b) = (0.5, 0.4)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0, 0.0], [3.0, -1.0]]))
        model[1].bias.copy_(torch.tensor([0.0, 0.2]))
    return model, torch.tensor([[[[0.5, 0.4]]]]), torch.tensor([1])


def bind(name, **options):
    objective = OBJECTIVES.bind(name, options)
    return lambda model, x, y: objective(model, x, y, generator=streams(len(y)), epoch=0.0)


def test_natural_by_hand(two_pixels):
    z = 3 * 0.5 - 0.4 + 0.2
    assert bind("natural")(*two_pixels).total.item() == pytest.approx(math.log1p(math.exp(-z)), rel=1e-6)
    smooth = 0.95 * math.log1p(math.exp(-z)) + 0.05 * math.log1p(math.exp(z))
    assert bind("natural", label_smoothing=0.1)(*two_pixels).total.item() == pytest.approx(smooth, rel=1e-6)


def test_adversarial_by_hand(two_pixels):
    """The true label is 1, so the worst point in the ℓ∞ ball of 0.1 is (0.4, 0.5)."""
    worst, clean = 3 * 0.4 - 0.5 + 0.2, 3 * 0.5 - 0.4 + 0.2
    robust, natural = math.log1p(math.exp(-worst)), math.log1p(math.exp(-clean))
    at = bind("adversarial", threat="linf:1/10")(*two_pixels)
    assert at.total.item() == pytest.approx(robust, rel=1e-6)
    half = bind("adversarial", threat="linf:1/10", beta=0.5)(*two_pixels)
    assert half.total.item() == pytest.approx((robust + natural) / 2, rel=1e-6)
    assert half.parts["clean"].item() == pytest.approx(natural, rel=1e-6)
    l2 = 1.3 - 0.1 * math.sqrt(10)
    weak = bind("adversarial", threat="l2:1/10", steps=30)(*two_pixels)
    assert weak.total.item() == pytest.approx(math.log1p(math.exp(-l2)), rel=1e-4)


def test_half_half_is_the_mean_of_the_two_losses_bit_for_bit():
    model = build_model("small_cnn", classes=3, channels=1, size=8, width=4).eval()
    x, y = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    threat = {"threat": Threat("linf", Fraction(1, 10))}
    at = bind("adversarial", **threat)(model, x, y).total
    half = bind("adversarial", beta=0.5, **threat)(model, x, y).total
    assert torch.equal(half, 0.5 * at + 0.5 * F.cross_entropy(model(x), y))
