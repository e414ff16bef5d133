"""FMN: known distances, no weaker than another library's, and what every attack promises."""

import numpy as np
import pytest
import torch
from test_fab import NORMS, THREATS, linear
from test_hyperplane import shortest

from generalist.attacks import fmn, fmn_distance
from generalist.attacks.view import counted_passes, misclassified
from generalist.core.errors import UserError
from oracles import natural_digits, robust_digits


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("at_the_edge", [False, True])
def test_the_distance_of_a_linear_model(norm, at_the_edge):
    """|w·x + b| / ‖w‖_dual where the box is far away; the solution of a linear or convex program where it binds."""
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(16, generator=generator, dtype=torch.float64)
    x = 0.5 + 0.02 * torch.rand(12, 1, 4, 4, generator=generator, dtype=torch.float64)
    if at_the_edge:
        x = (80 * (x - 0.51) + 0.5).clamp(0, 1)
    offset = (x.flatten(1) @ w).median().item() + 0.001
    model = linear(w, -offset)
    y = model(x).argmax(1)
    lead = (x.flatten(1) @ w - offset).detach()
    free = lead.abs() / {"linf": w.abs().sum(), "l2": w.norm(), "l1": w.abs().max()}[norm]
    pairs = zip(x.flatten(1).numpy(), lead.numpy(), strict=True)
    exact = torch.tensor(np.array([shortest(row, w.numpy(), -gap, norm) for row, gap in pairs]))
    assert ((exact > 1.02 * free).sum() >= 3) == at_the_edge
    x_adv, distance = fmn_distance(model, x, y, threat=THREATS[norm])
    torch.testing.assert_close(distance, exact if at_the_edge else free, rtol=0.01, atol=0)
    torch.testing.assert_close(THREATS[norm].size(x_adv - x), distance)
    assert (model(x_adv).argmax(1) != y).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("trained", ["natural", "robust"])
def test_no_farther_than_another_library(norm, trained):
    """foolbox's FMN, the same steps; it finds nothing for some images, which counts as infinitely far."""
    foolbox = pytest.importorskip("foolbox", reason="foolbox, an independent FMN, is not installed")
    model, x, y = (natural_digits() if trained == "natural" else robust_digits(norm)).first(100)
    kind = {"linf": "LInfFMNAttack", "l2": "L2FMNAttack", "l1": "L1FMNAttack"}[norm]
    peer = getattr(foolbox.attacks, kind)(steps=40)
    found, *_ = peer(foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=None)
    theirs = torch.where(misclassified(model, found, y), THREATS[norm].size(found - x), torch.inf)
    _, ours = fmn_distance(model, x, y, threat=THREATS[norm], steps=40)
    right = ~misclassified(model, x, y)
    assert ours[right].isfinite().all()
    assert ours[right].median() <= theirs[right].median()


@pytest.mark.parametrize("norm", NORMS)
def test_inside_ball_and_box_and_the_verdict_is_that_of_the_distance(norm):
    model, x, y = robust_digits(norm).first(100)
    threat = THREATS[norm]
    x_adv = fmn(model, x, y, threat=threat, steps=20)
    assert (threat.size(x_adv - x) <= threat.radius).all()
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    points, distance = fmn_distance(model, x, y, threat=threat, steps=20)
    robust = ~misclassified(model, x_adv, y)
    assert torch.equal(robust, distance > threat.radius)
    assert torch.equal(x_adv[robust], x[robust])
    assert 0.1 < robust.float().mean() < 0.9
    assert misclassified(model, points[distance.isfinite()], y[distance.isfinite()]).all()


@pytest.mark.parametrize("norm", NORMS)
def test_distances_do_not_depend_on_the_batch(norm):
    model, x, y = robust_digits(norm).first(28)

    def distances(x, y, size):
        parts = zip(x.split(size), y.split(size), strict=True)
        return torch.cat([fmn_distance(model, a, b, threat=THREATS[norm], steps=10, restarts=2)[1] for a, b in parts])

    whole = distances(x, y, 500)
    torch.testing.assert_close(distances(x, y, 7), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(distances(x.flip(0), y.flip(0), 500).flip(0), whole, rtol=1e-4, atol=1e-5)


def test_images_that_fell_cost_nothing_and_restarts_help():
    model, x, y = natural_digits().first(200)
    with counted_passes() as passes:
        fmn(model, x, y, threat="linf:3/10")
    assert passes.forward < 0.1 * 100 * len(x)
    once, thrice = (fmn_distance(model, x, y, threat="l2:1/2", steps=10, restarts=n)[1] for n in (1, 3))
    assert (thrice <= once).all()
    assert (thrice < once).any()


def test_an_attack_that_would_do_nothing_is_refused():
    model, x, y = natural_digits().first(2)
    for knob in ("steps", "restarts"):
        with pytest.raises(UserError, match=knob):
            fmn(model, x, y, threat="linf:1/10", **{knob: 0})
