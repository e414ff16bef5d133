"""FMN: known distances, no weaker than another library's, and what every attack promises."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

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


def foolbox_fmn(model, x, y, norm, monkeypatch):
    foolbox = pytest.importorskip("foolbox", reason="foolbox, an independent FMN, is not installed")
    kind = {"linf": "LInfFMNAttack", "l2": "L2FMNAttack", "l1": "L1FMNAttack"}[norm]
    peer = getattr(foolbox.attacks, kind)(steps=40)
    found, *_ = peer(foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=None)
    return found


def advlib_fmn(model, x, y, norm, monkeypatch):
    """Its contents page imports torchvision, which FMN does not need: that page is passed over."""
    spec = importlib.util.find_spec("adv_lib")
    if spec is None or spec.origin is None:
        pytest.skip("adv-lib, an independent FMN, is not installed: pip install --no-deps adv-lib==0.2.8")
    page = ModuleType("adv_lib.attacks")
    page.__path__ = [str(Path(spec.origin).parent / "attacks")]
    monkeypatch.setitem(sys.modules, "adv_lib.attacks", page)
    module = pytest.importorskip("adv_lib.attacks.fast_minimum_norm", exc_type=ImportError, reason="needs distutils")
    return module.fmn(model, x, y, norm={"linf": math.inf, "l2": 2, "l1": 1}[norm], steps=40)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("trained", ["natural", "robust"])
@pytest.mark.parametrize("peer", [foolbox_fmn, advlib_fmn])
def test_no_farther_than_another_library(peer, norm, trained, monkeypatch):
    """The same steps. Theirs finds nothing for some images, which counts as infinitely far."""
    model, x, y = (natural_digits() if trained == "natural" else robust_digits(norm)).first(100)
    found = peer(model, x, y, norm, monkeypatch)
    theirs = torch.where(misclassified(model, found, y), THREATS[norm].size(found - x), torch.inf)
    _, ours = fmn_distance(model, x, y, threat=THREATS[norm], steps=40)
    right = ~misclassified(model, x, y)
    assert ours[right].isfinite().all()
    assert theirs[right].isfinite().float().mean() > 0.5
    assert ours[right].median() <= theirs[right].median()
    both = right & theirs.isfinite()
    assert (ours[both] / theirs[both]).mean() < 1.03


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
