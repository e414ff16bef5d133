"""FAB: known distances, no weaker than the authors' own."""

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch
from test_hyperplane import shortest
from torch import nn

from generalist import Threat, build_model
from generalist.attacks.fab import fab_distance, fab_t
from generalist.attacks.view import counted_passes, misclassified
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams
from oracles import natural_digits, robust_accuracy, robust_digits

NORMS = ["linf", "l2", "l1"]
THREATS = {norm: Threat.parse(f"{norm}:{eps}") for norm, eps in (("linf", "0.2"), ("l2", "0.9"), ("l1", "3"))}


# Known distances


def linear(weight, bias):
    """Two classes with logits (0, w·x + b)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(len(weight), 2, dtype=torch.float64))
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([torch.zeros_like(weight), weight]))
        model[1].bias.copy_(torch.tensor([0.0, bias]))
    return model


@pytest.mark.parametrize("norm", NORMS)
def test_the_distance_of_a_linear_model(norm):
    """|w·x + b| / ‖w‖_dual where the box is far away."""
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(16, generator=generator, dtype=torch.float64)
    x = 0.5 + 0.02 * torch.rand(12, 1, 4, 4, generator=generator, dtype=torch.float64)
    model = linear(w, -(0.51 * w.sum()).item())
    y = model(x).argmax(1)
    dual = {"linf": w.abs().sum(), "l2": w.norm(), "l1": w.abs().max()}[norm]
    exact = (x.flatten(1) @ w - 0.51 * w.sum()).abs() / dual
    x_adv, distance = fab_distance(model, x, y, threat=THREATS[norm], steps=20)
    torch.testing.assert_close(distance, exact, rtol=0.01, atol=0)
    torch.testing.assert_close(THREATS[norm].size(x_adv - x), distance)
    assert (model(x_adv).argmax(1) != y).all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_distance_of_a_linear_model_with_pixels_at_the_edge_of_the_box(norm):
    generator = torch.Generator().manual_seed(2)
    w = torch.randn(16, generator=generator, dtype=torch.float64)
    x = torch.rand(10, 1, 4, 4, generator=generator, dtype=torch.float64).mul(1.6).sub(0.3).clamp(0, 1)
    model = linear(w, -(x.flatten(1) @ w).median().item() - 0.01)
    y = model(x).argmax(1)
    lead = model(x)[:, 1].detach().numpy()
    exact = [shortest(t, w.numpy(), -gap, norm) for t, gap in zip(x.flatten(1).numpy(), lead, strict=True)]
    free = abs(lead) / {"linf": w.abs().sum(), "l2": w.norm(), "l1": w.abs().max()}[norm].item()
    assert (np.array(exact) > 1.05 * free).sum() >= 3  # the box does matter
    _, distance = fab_distance(model, x, y, threat=THREATS[norm], steps=30)
    torch.testing.assert_close(distance, torch.tensor(np.array(exact)), rtol=0.01, atol=0)


def test_already_wrong_is_at_distance_zero_and_no_other_class_at_infinity():
    x = torch.full((2, 1, 2, 2), 0.5, dtype=torch.float64)
    model = linear(torch.zeros(4, dtype=torch.float64), 1.0)
    x_adv, distance = fab_distance(model, x, torch.tensor([0, 1]), threat=THREATS["linf"], steps=3)
    assert distance.tolist() == [0.0, float("inf")]
    assert torch.equal(x_adv, x)


# Beside other libraries


@pytest.mark.parametrize("norm", NORMS)
def test_no_weaker_than_the_authors_code(norm):
    """FAB-T of AutoAttack, every image and every target, the same steps."""
    fab_pt = pytest.importorskip("pyautoattack.fab_pt")
    model, x, y = robust_digits(norm).first(500)
    threat, steps = THREATS[norm], 8
    _, ours = fab_distance(model, x, y, threat=threat, steps=steps)
    reference = fab_pt.FABAttack_PT(
        model, norm=norm.capitalize(), n_iter=steps, eps=threat.radius, targeted=True, device="cpu"
    )
    theirs = torch.full_like(ours, float("inf"))
    for rank in range(2, 11):
        reference.target_class = rank
        x_adv = reference.attack_single_run(x, y, is_targeted=True)
        wrong = model(x_adv).argmax(1) != y
        theirs = torch.where(wrong, theirs.minimum(threat.size(x_adv - x)), theirs)
    right = model(x).argmax(1) == y
    assert ours[right].median() <= 1.01 * theirs[right].median()
    for quantile in (0.1, 0.25, 0.75, 0.9):
        assert ours[right].quantile(quantile) <= 1.01 * theirs[right].quantile(quantile)
    robust = 100 * torch.stack([(distance > threat.radius).float().mean() for distance in (ours, theirs)])
    assert robust[0] <= robust[1] + 0.5
    assert 10 < robust[1] < 80  # something was at stake


def test_nearer_than_deepfool():
    foolbox = pytest.importorskip("foolbox")
    model, x, y = robust_digits("l2").first(100)
    _, ours = fab_distance(model, x, y, threat=THREATS["l2"], steps=15)
    attack = foolbox.attacks.L2DeepFoolAttack(steps=20)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    x_adv, _, success = attack(wrapped, x, y, epsilons=None)
    right = (model(x).argmax(1) == y) & success
    assert ours[right].median() < 0.98 * THREATS["l2"].size(x_adv - x)[right].median()


# What every attack promises


@pytest.mark.parametrize("norm", NORMS)
def test_inside_ball_and_box_and_the_verdict_is_that_of_the_distance(norm):
    model, x, y = robust_digits(norm).first(120)
    threat = THREATS[norm]
    x_adv = fab_t(model, x, y, threat=threat, steps=10, targets=3)
    assert (threat.size(x_adv - x) <= threat.radius).all()
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    _, distance = fab_distance(model, x, y, threat=threat, steps=10, targets=3)
    robust = model(x_adv).argmax(1) == y
    assert torch.equal(robust, distance > threat.radius)
    assert torch.equal(x_adv[robust], x[robust])
    assert 0.1 < robust.float().mean() < 0.9


@pytest.mark.parametrize("norm", NORMS)
def test_verdicts_do_not_depend_on_the_batch(norm):
    model, x, y = robust_digits(norm).first(28)

    def verdicts(x, y, size):
        batches = zip(x.split(size), y.split(size), strict=True)
        knobs = {"threat": THREATS[norm], "steps": 5, "targets": 2, "restarts": 2}
        return torch.cat([model(fab_t(model, a, b, **knobs)).argmax(1) == b for a, b in batches])

    whole = verdicts(x, y, 500)
    assert torch.equal(verdicts(x, y, 7), whole)
    assert torch.equal(verdicts(x, y, 1), whole)
    assert torch.equal(verdicts(x.flip(0), y.flip(0), 500).flip(0), whole)


def test_more_steps_targets_restarts_and_radius_never_help_the_model():
    model, x, y = robust_digits("linf").first(200)

    def robust(eps="0.2", **knobs):
        threat = Threat("linf", Fraction(eps))
        return robust_accuracy(model, fab_t(model, x, y, threat=threat, **{"steps": 5, "targets": 2} | knobs), y)

    base = robust()
    assert robust(steps=20) <= robust(steps=10) <= base
    assert robust(targets=5) <= base
    assert robust(restarts=3) <= base
    assert robust(eps="0.3") < base < robust(eps="0.1")


def test_same_generator_same_output_and_random_restarts():
    model, x, y = robust_digits("l2").first(30)
    knobs = {"threat": THREATS["l2"], "steps": 4, "targets": 1, "restarts": 2}

    def attacked(seed):
        return fab_distance(model, x, y, generator=torch.Generator().manual_seed(seed), **knobs)[1]

    assert torch.equal(attacked(0), attacked(0))
    assert not torch.equal(attacked(0), attacked(1))
    given = ImageStreams(0, ids=torch.arange(30))
    assert len(fab_t(model, x, y, generator=given, **knobs)) == 30


class Untraceable(nn.Module):
    """Cannot be folded, so the model itself is attacked."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.sum() > -1 else self.inner(-x)


def test_images_that_fell_cost_nothing():
    model, x, y = natural_digits().first(200)
    with counted_passes() as passes:
        fab_t(model, x, y, threat=Threat("linf", Fraction(3, 10)), steps=100)
    assert passes.forward < 0.01 * 100 * 9 * 2 * len(x)


def test_one_backward_pass_a_step():
    model, x, y = robust_digits("linf").first(20)
    right = model(x).argmax(1) == y
    with counted_passes() as passes:
        fab_distance(model, x, y, threat=THREATS["linf"], steps=7, targets=3)
    assert passes.backward == 7 * 3 * right.sum()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("classes", "channels"), [(2, 3), (3, 1)])
def test_few_classes_colours_and_a_batch_of_one(norm, classes, channels):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 16), nn.Tanh(), nn.Linear(16, classes))
    x = torch.rand(4, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model[3].bias.sub_(model(x).mean(0))
    y = model(x).argmax(1)
    x_adv, distance = fab_distance(model, x, y, threat=THREATS[norm], steps=20)
    assert distance.isfinite().all()
    assert misclassified(model, x_adv, y).all()  # which rounds alike in a batch of any size; these are on the boundary
    alone, _ = fab_distance(model, x[:1], y[:1], threat=THREATS[norm], steps=20)
    torch.testing.assert_close(alone, x_adv[:1], atol=1e-4, rtol=0)
    assert fab_t(model, x[:0], y[:0], threat=THREATS[norm]).shape == x[:0].shape


def test_the_model_is_left_as_it_was():
    model = build_model("small_cnn", classes=3, channels=1, size=8, width=4).train()
    for wrapped in (model, Untraceable(model)):
        state = copy.deepcopy(wrapped.state_dict())
        x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        fab_t(wrapped, x, torch.tensor([0, 1, 2, 0]), threat=THREATS["l2"], steps=2)
        assert all(module.training for module in wrapped.modules())
        assert all(p.requires_grad and p.grad is None for p in wrapped.parameters())
        assert all(torch.equal(state[key], value) for key, value in wrapped.state_dict().items())
        assert not x.requires_grad


def test_autocast_does_not_blur_the_boundary():
    model, x, y = robust_digits("linf").first(60)
    plain = fab_t(model, x, y, threat=THREATS["linf"], steps=5, targets=2)
    with torch.autocast("cpu", torch.bfloat16):
        low = fab_t(model, x, y, threat=THREATS["linf"], steps=5, targets=2)
    assert torch.equal(low, plain)


class Flat(nn.Module):
    """Logits that do not move, with one image's turned into NaN by any change at all."""

    def forward(self, x):
        logits = torch.stack([1 + 0 * x.flatten(1).sum(1), 0 * x.flatten(1).sum(1)], 1)
        return torch.where(x.flatten(1).amax(1, keepdim=True) > 0.95, float("nan"), logits)


def test_no_gradient_and_nan_logits_do_no_harm():
    x = torch.full((2, 1, 4, 4), 0.5)
    x_adv = fab_t(Flat(), x, torch.zeros(2, dtype=torch.long), threat=THREATS["linf"], steps=3, restarts=2)
    assert torch.equal(x_adv, x)


def test_an_attack_that_would_do_nothing_is_refused():
    x, y = torch.full((1, 1, 4, 4), 0.5), torch.tensor([0])
    for knob in ("steps", "targets", "restarts"):
        with pytest.raises(UserError, match=knob):
            fab_t(Flat(), x, y, threat=THREATS["linf"], **{knob: 0})
