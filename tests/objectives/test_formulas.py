"""Every method against its formula, worked out by hand on a linear model of two pixels.

Logits (0, 3a − b + 0.2) of the image (a, b) = (0.5, 0.4), label 1: z = 1.3. In the ℓ∞ ball of 0.1 the worst point is
(0.4, 0.5), z = 0.9; the step of 0.04 that some tests use gets to (0.46, 0.44).
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generalist import RunError, Threat, UserError
from generalist.core.types import LossTerms, step_context
from generalist.models.gradcam import activation_map
from generalist.objectives import make_objective, perturbed_weights
from generalist.objectives.agr import reconciled, shortened
from generalist.objectives.fat import friendly
from generalist.objectives.fields import divergence
from generalist.objectives.iat import mixed_loss
from generalist.objectives.multi_norm import steepest_of_all
from generalist.objectives.part import standardised
from generalist.objectives.ramp import merged, paired
from generalist.objectives.trades import diverging

CLEAN, WORST = 1.3, 0.9
LINF = {"threat": "linf:1/10"}


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def ce(z):
    """−log p_1 of the logits (0, z)."""
    return math.log1p(math.exp(-z))


def kl(z, z_adv):
    """KL(p(x)‖p(x')) of two such pairs of logits."""
    p, q = sigmoid(z), sigmoid(z_adv)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def linear(slope=(3.0, -1.0), bias=0.2):
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0, 0.0], slope]))
        model[1].bias.copy_(torch.tensor([0.0, bias]))
    return model


@pytest.fixture
def case():
    return linear(), torch.tensor([[[[0.5, 0.4]]]]), torch.tensor([1])


def now(count=1, **options):
    return step_context("test", ids=torch.arange(count), **options)


def value(name, case, *, networks=None, progress=0.0, **options):
    model, x, y = case
    objective = make_objective(name, options, networks=networks)
    if isinstance(objective, nn.Module):
        objective.attach_(model)
    return objective(model, x, y, context=now(len(y), progress=progress))()


def test_natural(case):
    assert value("natural", case).total.item() == pytest.approx(ce(CLEAN), rel=1e-6)
    smooth = 0.95 * ce(CLEAN) + 0.05 * ce(-CLEAN)
    assert value("natural", case, label_smoothing=0.1).total.item() == pytest.approx(smooth, rel=1e-6)


def test_adversarial(case):
    assert value("adversarial", case, **LINF).total.item() == pytest.approx(ce(WORST), rel=1e-6)
    half = value("adversarial", case, beta=0.5, **LINF)
    assert half.total.item() == pytest.approx((ce(WORST) + ce(CLEAN)) / 2, rel=1e-6)
    assert half.parts["clean"].item() == pytest.approx(ce(CLEAN), rel=1e-6)
    weak = value("adversarial", case, threat="l2:1/10", steps=30)
    assert weak.total.item() == pytest.approx(ce(CLEAN - 0.1 * math.sqrt(10)), rel=1e-4)


def test_trades_goes_as_far_from_the_clean_answer_as_it_can(case):
    """Either corner may be reached from the noise: (0.4, 0.5) with z = 0.9 or (0.6, 0.3) with z = 1.7."""
    model, x, y = case
    point = diverging(model, x, y, context=now(), threat=Threat.parse("linf:1/10"), steps=10, step_size=None)
    z_adv = (model(point)[0, 1] - model(point)[0, 0]).item()
    assert z_adv == pytest.approx(WORST, abs=1e-5) or z_adv == pytest.approx(1.7, abs=1e-5)
    terms = value("trades", case, beta=6.0, **LINF)
    assert terms.total.item() == pytest.approx(ce(CLEAN) + 6 * kl(CLEAN, z_adv), rel=1e-4)


def test_hat_asks_the_standard_network_about_the_attacked_image(case):
    """The standard network says 0 to everything; x + 2(x'−x) is twice as far."""
    terms = value("hat", case, networks={"standard": linear(slope=(0.0, 0.0), bias=-1.0)}, **LINF)
    wanted = [ce(CLEAN) + 2.5 * kl(CLEAN, z) + 0.5 * ce(-(2 * z - CLEAN)) for z in (WORST, 1.7)]
    assert any(terms.total.item() == pytest.approx(total, rel=1e-4) for total in wanted)


def test_lbgat_pulls_the_logits_to_those_of_the_network_beside(case):
    """The network beside starts as a copy: its logits on x are (0, 1.3), the robust ones (0, z')."""
    terms = value("lbgat", case, beta=6.0, **LINF)
    wanted = [ce(CLEAN) + (z - CLEAN) ** 2 / 2 + 6 * kl(CLEAN, z) for z in (WORST, 1.7)]
    assert any(terms.total.item() == pytest.approx(total, rel=1e-4) for total in wanted)
    plain = value("lbgat", case, beta=0.0, **LINF)
    assert plain.total.item() == pytest.approx(ce(CLEAN) + 0.4**2 / 2, rel=1e-4)
    assert "divergence" not in plain.parts


def test_mart(case):
    p, q = sigmoid(CLEAN), sigmoid(WORST)
    wanted = ce(WORST) - math.log(1 - (1 - q)) + 5 * kl(CLEAN, WORST) * (1 - p)
    assert value("mart", case, **LINF).total.item() == pytest.approx(wanted, rel=1e-5)


def test_fat_stops_where_its_patience_ends(case):
    """A boundary at 3a − b = 0.9 (bias −0.9), followed pixel by pixel with steps of 0.02."""
    model, x, y = linear(bias=-0.9), *case[1:]
    threat = Threat.parse("linf:1/10")
    start = threat.random_start(x, now().generator)
    for tau in (0, 1, 2, 10):
        a, b, left = *start.flatten().tolist(), tau
        for _ in range(10):
            if 3 * a - b - 0.9 < 0:
                if left == 0:
                    break
                left -= 1
            a, b = max(a - 0.02, 0.4), min(b + 0.02, 0.5)
        got = friendly(model, x, y, threat=threat, steps=10, step_size=0.02, noise=0.0, context=now(), tau=tau)
        assert got.flatten().tolist() == pytest.approx([a, b], abs=1e-6), tau


def test_fat_takes_the_patience_of_its_time(case):
    model, x, y = linear(bias=-0.9), *case[1:]
    losses = [
        value("fat", (model, x, y), progress=p, noise=0.0, step_size="1/50", **LINF).total for p in (0.3, 0.6, 0.9)
    ]
    assert losses[0] < losses[1] < losses[2]
    by_hand = [
        value("fat", (model, x, y), patience=(t, t, t), noise=0.0, step_size="1/50", **LINF).total for t in (0, 1, 2)
    ]
    assert torch.equal(torch.stack(losses), torch.stack(by_hand))


def test_iat_mixes_with_the_image_before():
    model, share = linear(), torch.tensor([0.25, 0.5])
    x, y = torch.tensor([[[[0.5, 0.4]]], [[[0.1, 0.2]]]]), torch.tensor([1, 0])
    z = [3 * a - b + 0.2 for a, b in ((0.25 * 0.5 + 0.75 * 0.1, 0.25 * 0.4 + 0.75 * 0.2), (0.3, 0.3))]
    wanted = (0.25 * ce(z[0]) + 0.75 * ce(-z[0]) + 0.5 * ce(-z[1]) + 0.5 * ce(z[1])) / 2
    assert mixed_loss(model, x, y, share).item() == pytest.approx(wanted, rel=1e-5)
    terms = value("iat", (model, x[:1], y[:1]), **LINF)  # an image alone is mixed with itself
    assert terms.total.item() == pytest.approx((ce(CLEAN) + ce(WORST)) / 2, rel=1e-5)


def test_rst_weighs_extra_images_otherwise(case):
    terms = value("rst", case, **LINF)
    assert terms.total.item() == pytest.approx((ce(CLEAN) + ce(WORST)) / 2, rel=1e-4)
    model, x, y = case
    objective = make_objective("rst", LINF)
    extra = objective(model, x.repeat(2, 1, 1, 1), y.repeat(2), context=now(2, extra=torch.tensor([False, True])))()
    wanted = (0.5 * ce(CLEAN) + 0.5 * ce(WORST) + 0.9 * ce(CLEAN) + 0.5 * ce(WORST)) / 2
    assert extra.total.item() == pytest.approx(wanted, rel=1e-4)


def test_score(case):
    def d(p, q):
        return 2 * (p - q) ** 2

    q, p = sigmoid(WORST), sigmoid(CLEAN)
    for allowed in (0.0, 0.1):
        plain = value("score", case, form="pgd", threshold=allowed, **LINF).total.item()
        assert plain == pytest.approx(max(d(q, 1) - allowed, 0), rel=1e-5)
    assert value("score", case, form="pgd", **LINF).total.item() == 0  # d = 0.17 is below 0.4
    found = value("score", case, form="trades", threshold=0.0, **LINF).total.item()
    assert any(found == pytest.approx(d(p, 1) + 6 * d(sigmoid(z), p), rel=1e-4) for z in (WORST, 1.7))


def test_agr_before_and_after_its_start(case):
    g1, g2 = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(reconciled(g1, g2), g1 + 0.5 * g2)  # opposed: g1 loses its part along g2
    assert abs((reconciled(g1, g2) * g2).sum()) < 1e-6
    g2, c = torch.tensor([1.0, 1.0]), 1 / math.sqrt(2)
    torch.testing.assert_close(reconciled(g1, g2), c * g2 + (1 - c) * g1)
    torch.testing.assert_close(shortened(torch.tensor([3.0, 4.0]), 0.1), torch.tensor([0.06, 0.08]))
    torch.testing.assert_close(shortened(torch.tensor([0.03, 0.04]), 0.1), torch.tensor([0.03, 0.04]))

    model, x, y = case
    worst = torch.tensor([[[[0.4, 0.5]]]])
    gradients = []
    for image in (worst, x):
        model.zero_grad()
        F.cross_entropy(model(image), y).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    wanted = [shortened(reconciled(a, b), 0.1) for a, b in zip(*gradients, strict=True)]
    model.zero_grad()
    terms = value("agr", case, progress=0.9, **LINF)
    terms.total.backward()
    assert terms.total.item() == pytest.approx(ce(WORST), rel=1e-6)
    for p, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_part_gives_pixels_that_matter_less_a_smaller_bound(case):
    """The input is the only feature map: heat (3·0.5 + …) differs between pixels only through their values."""
    model, x, _ = case
    heat = activation_map(model, x)
    weight = torch.tensor([3.0, -1.0]).mean()
    torch.testing.assert_close(heat, (weight * x).relu())
    # of two pixels one is a deviation above the mean and the other one below, so neither exceeds a deviation by much
    assert standardised(heat).flatten().tolist() == pytest.approx([1.0, -1.0], rel=1e-4)
    some = value("part", case, progress=0.5, deviations=0.5, lower=0.5, **LINF)
    assert some.total.item() == pytest.approx(ce(3 * 0.4 - 0.45 + 0.2), rel=1e-5)  # a by 0.1, b by 0.05
    assert value("part", case, progress=0.1, deviations=0.5, **LINF).total.item() == pytest.approx(ce(WORST), rel=1e-5)
    with pytest.raises(UserError, match="linf"):
        make_objective("part", {"threat": "l2:1"})
    with pytest.raises(UserError, match="one number per threat, got 1 for 2"):
        make_objective("msd", {"threats": ["linf:1", "l2:1"], "step_sizes": [0.1]})


def test_average_and_max(case):
    threats = ["linf:1/10", "l2:1/10"]
    l2 = ce(CLEAN - 0.1 * math.sqrt(10))
    terms = value("average", case, threats=threats, steps=30)
    assert terms.total.item() == pytest.approx((ce(WORST) + l2) / 2, rel=1e-4)
    assert value("max", case, threats=threats, steps=30).total.item() == pytest.approx(ce(WORST), rel=1e-5)
    assert l2 < ce(WORST)


def test_msd_takes_the_steeper_norm_at_each_step(case):
    """From (0.5, 0.4), steps of 0.025 in ℓ∞ move z by −0.1; of 0.075 in ℓ2 by −0.237: ℓ2 first, to its edge."""
    model, x, y = case
    threats = tuple(Threat.parse(text) for text in ("linf:1/10", "l2:3/10"))
    one = steepest_of_all(model, x, y, threats=threats, steps=1)
    direction = torch.tensor([[[[-3.0, 1.0]]]]) / math.sqrt(10)
    torch.testing.assert_close(one, x + 0.075 * direction)
    many = steepest_of_all(model, x, y, threats=threats, steps=10)
    torch.testing.assert_close(many, x + 0.3 * direction, atol=1e-5, rtol=1e-5)


def test_e_at_draws_norms_by_their_errors(case):
    model, x, y = case
    objective = make_objective("e-at", {"threats": ["linf:1/10", "l1:1/10"], "memory": 0.5})
    draws = [int(objective.draw(step_context("draw", step, ids=torch.arange(1)))) for step in range(400)]
    assert 0.4 < sum(draws) / 400 < 0.6
    objective.errors.copy_(torch.tensor([1.0, 0.0]))
    assert not any(int(objective.draw(step_context("draw", step, ids=torch.arange(1)))) for step in range(50))
    loss = objective(model, x, y, context=now())
    assert loss().total.item() == pytest.approx(ce(WORST), rel=1e-5)
    loss()  # as AWP does
    assert objective.errors.tolist() == [1.0, 0.0]
    objective.step_ended_(usable=True, context=now())
    assert objective.errors.tolist() == [0.5, 0.0]  # half forgotten, no error: the image is still right
    objective(model, x, y, context=now())()
    objective.step_ended_(usable=False, context=now())
    assert objective.errors.tolist() == [0.5, 0.0]
    objective.errors.copy_(torch.tensor([0.0, 1.0]))
    spent = objective(model, x, y, context=now())().total.item()
    assert spent == pytest.approx(ce(CLEAN - 0.3), rel=1e-4)  # ℓ1 spends all of it on a


def test_ramp_pairs_logits_and_merges_updates(case):
    z_s, z_t = torch.tensor([[0.0, 1.3], [0.0, 1.0]]), torch.tensor([[0.0, 0.9], [0.0, 2.0]])
    assert paired(z_s, z_t, torch.tensor([1, 0])).item() == pytest.approx(kl(1.3, 0.9), rel=1e-5)
    assert paired(z_s, z_t, torch.tensor([0, 0])).item() == 0
    natural, robust = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])
    torch.testing.assert_close(merged(natural, robust, 0.5), 0.5 / math.sqrt(2) * natural + 0.5 * robust)
    torch.testing.assert_close(merged(-natural, robust, 0.5), 0.5 * robust)  # an opposed clean update is left out
    terms = value("ramp", case, threats=["linf:1/10", "l2:1/10"], steps=30)
    l2 = CLEAN - 0.1 * math.sqrt(10)
    wanted = ce(WORST) + 5 * kl(WORST, l2) + ce(CLEAN)  # the last is the copy's own loss
    assert terms.total.item() == pytest.approx(wanted, rel=1e-3)


def test_ramp_at_the_end_of_an_epoch():
    model = linear()
    objective = make_objective("ramp", {"threats": ["linf:1/10", "l2:1/10"]})
    objective.attach_(model)
    old = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p, q in zip(model.parameters(), objective.clean.parameters(), strict=True):
            p.add_(0.2)
            q.add_(0.1)
    objective.epoch_ended_(model)
    for before, p, q, s in zip(
        old, model.parameters(), objective.clean.parameters(), objective.start.parameters(), strict=True
    ):
        torch.testing.assert_close(p, before + 0.5 * 0.1 + 0.5 * 0.2)
        assert torch.equal(p, q)
        assert torch.equal(p, s)


def test_rmc_follows_the_bezier_curve_through_its_bend(case):
    """w₁, w₂ and the bend b by hand: θ(t) = (1−t)²w₁ + 2t(1−t)b + t²w₂, and b moves as its own gradient says."""
    model, x, y = case
    first, second = linear(slope=(1.0, 0.0)), linear(slope=(0.0, 2.0))
    objective = make_objective("rmc", {"threats": ["linf:1/10"]}, networks={"first": first, "second": second})
    objective.attach_(model)
    torch.testing.assert_close(model[1].weight[1], torch.tensor([0.5, 1.0]))
    bend = torch.tensor([1.5, -0.5])
    w1, w2 = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    with torch.no_grad():
        model[1].weight[1] = w1 / 4 + bend / 2 + w2 / 4
    for t in (0.0, 0.3, 0.5, 1.0):
        on_curve = (1 - t) ** 2 * w1 + 2 * t * (1 - t) * bend + t**2 * w2
        torch.testing.assert_close(objective.at(model, t)["1.weight"][1], on_curve)
    theta = objective.at(model, 0.3)["1.weight"]
    (gradient,) = torch.autograd.grad(theta[1].sum(), model[1].weight)
    assert gradient[1].tolist() == pytest.approx([0.3 * 0.7] * 2)  # half of the bend's 2t(1−t), for m = b/2 + …
    ends = [variant[1].weight[1] for variant in objective.variants(model)]
    assert len(ends) == 61
    torch.testing.assert_close(ends[0], w1)
    torch.testing.assert_close(ends[-1], w2)
    torch.testing.assert_close(ends[30], model[1].weight[1])
    terms = objective(model, x, y, context=now())()
    terms.total.backward()
    assert model[1].weight.grad.abs().sum() > 0


def test_fast_steps_once_and_far(case):
    """1.25ε from anywhere in the ball reaches the worst corner, unless the start was at the far end."""
    model, x, y = case
    terms = value("fast", case, **LINF)
    begin = Threat.parse("linf:1/10").random_start(x, now().generator)
    point = torch.minimum(torch.maximum(begin + torch.tensor([[[[-0.125, 0.125]]]]), x - 0.1), x + 0.1)
    assert terms.total.item() == pytest.approx(F.cross_entropy(model(point), y).item(), rel=1e-6)


def test_awp_climbs_by_a_share_of_each_weights_norm_and_comes_back(case):
    model, x, y = case

    def loss():
        return LossTerms(F.cross_entropy(model(x), y))

    gradient = torch.autograd.grad(loss().total, model[1].weight)[0]
    before, bias = model[1].weight.detach().clone(), model[1].bias.detach().clone()
    with perturbed_weights(model, loss, 0.01, context=now()):
        wanted = before + 0.01 * before.norm() * gradient / gradient.norm()
        torch.testing.assert_close(model[1].weight.detach(), wanted)
        assert torch.equal(model[1].bias, bias)  # biases and BatchNorm are left alone
        assert loss().total > ce(CLEAN)
    assert torch.equal(model[1].weight, before)


def test_corrupted_images_stay_images_and_differ():
    from generalist.objectives.corrupted import corrupt

    x = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    changed = corrupt(x, now(200), severity=0.5)
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert (changed != x).flatten(1).any(1).float().mean() > 0.95
    assert torch.equal(changed[:7], corrupt(x[:7], now(7), severity=0.5))


def test_a_divergence_has_a_gradient_where_a_probability_is_zero():
    """softmax(150, 0) is (1, 0) in float32; 0·log 0 must not become NaN."""
    logits = torch.tensor([[0.0, 150.0, 1.0]], requires_grad=True)
    value = divergence(logits, torch.tensor([[0.0, 140.0, 3.0]]))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert torch.isfinite(gradient).all()
    p, q = torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([[0.6, 0.3, 0.1]])
    torch.testing.assert_close(divergence(p.log(), q.log()), (p * (p / q).log()).sum(1))


def test_a_map_without_relief_marks_no_pixel():
    assert standardised(torch.full((2, 1, 4, 4), 0.1) * torch.rand(2, 1, 1, 1)).abs().max() == 0


def test_networks_that_are_needed_must_be_there():
    with pytest.raises(UserError, match="standard"):
        make_objective("hat", LINF)


def test_consulted_networks_are_neither_trained_nor_saved():
    standard = linear()
    objective = make_objective("hat", LINF, networks={"standard": standard})
    assert not list(objective.parameters())
    assert not objective.state_dict()
    assert not any(p.requires_grad for p in standard.parameters())


class Deceptive(nn.Module):
    """Wrong only for a in (0.43, 0.47): one long step flies over it, small ones end in it."""

    def forward(self, x):
        z = 10 * ((x.flatten(1)[:, 0] - 0.45).abs() - 0.02)
        return torch.stack([torch.zeros_like(z), z], 1)


def test_fast_stops_when_robustness_collapses(case):
    model, x, y = case[0], case[1].repeat(40, 1, 1, 1), case[2].repeat(40)
    objective = make_objective("fast", {**LINF, "watch_every": 1})
    objective(model, x, y, context=now(40))
    objective.step_ended_(usable=True, context=now())
    assert objective.best.item() == 1
    with torch.no_grad():
        model[1].bias[1] = -1.0  # weak under any attack: no reason to stop
    objective(model, x, y, context=now(40))
    objective.step_ended_(usable=True, context=now())
    objective(Deceptive(), x, y, context=now(40))
    with pytest.raises(RunError, match=r"catastrophic overfitting at step 3: .* fell to \d+% from 100%"):
        objective.step_ended_(usable=True, context=now())
