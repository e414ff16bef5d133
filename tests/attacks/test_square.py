"""Square: no gradients, known answers, no weaker than the authors' own."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from generalist import Threat
from generalist.attacks.square import SCHEDULE, _side, square
from generalist.attacks.view import counted_passes, misclassified
from generalist.attacks.windows import Window, _bump, first_points
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams, generator
from generalist.fastpass import Patches, patches
from generalist.models import build_model
from oracles import natural_digits, robust_accuracy, robust_digits

NORMS = ["linf", "l2", "l1"]
THREATS = {norm: Threat.parse(f"{norm}:{eps}") for norm, eps in (("linf", "0.2"), ("l2", "0.9"), ("l1", "3"))}


# Known answers


class Brightness(nn.Module):
    """Class 1 where the mean pixel is above one half."""

    def forward(self, x):
        mean = x.flatten(1).mean(1)
        return torch.stack([0 * mean, mean - 0.5], 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("norm", "needed"), [("linf", 1.01), ("l2", 2.25), ("l1", 1.3)])
def test_brightness_falls_when_the_radius_exceeds_the_distance(norm, needed, channels):
    """ℓ∞: exactly then, which takes every single pixel, those of the last row and column too.

    In ℓ2 and ℓ1 the search is made of bumps whose halves nearly cancel in the mean, the worst case for them: the
    authors' code needs three and two times the distance.
    """
    x = torch.full((6, channels, 6, 6), 0.4, dtype=torch.float64)
    x += 0.002 * torch.arange(6).view(-1, 1, 1, 1)  # from 0.4 to 0.41, to tell the streams apart
    y, d = torch.zeros(6, dtype=torch.long), 36 * channels
    nearest, furthest = ({"linf": gap, "l2": gap * d**0.5, "l1": gap * d}[norm] for gap in (0.09, 0.1))
    model = Brightness()
    enough = square(model, x, y, threat=Threat(norm, Fraction(needed * furthest)), queries=1500)
    assert (model(enough).argmax(1) == 1).all()
    assert torch.equal(square(model, x, y, threat=Threat(norm, Fraction(0.99 * nearest)), queries=300), x)


def test_windows_shrink_by_the_schedule_whatever_the_number_of_queries():
    sides = [_side(query / 10_000, 0.8, 32, 32, "linf") for query in range(10_000)]
    areas = [0.8 / 2**k * 1024 for k in range(len(SCHEDULE) + 1)]
    changes = [0] + [bound + 1 for bound in SCHEDULE]
    assert [sides[at] for at in changes] == [max(round(area**0.5), 1) for area in areas]
    assert sides == sorted(sides, reverse=True)
    assert _side(0.5, 0.8, 32, 32, "linf") == sides[5000]
    bumps = {_side(query / 100, 0.8, 32, 32, "l2") for query in range(100)}
    assert min(bumps) == 3
    assert all(side % 2 for side in bumps)
    assert _side(0.0, 1.0, 4, 9, "linf") == 4


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_bump_is_a_hill_and_a_hollow_of_unit_norm(norm):
    for side in (1, 2, 3, 5, 8):
        bump = _bump(side, norm)
        assert bump.shape == (side, side)
        assert bump.norm(p=2 if norm == "l2" else 1).item() == pytest.approx(1)
    five = _bump(5, norm)
    assert (five[:2] > 0).all()
    assert (five[2:] < 0).all()
    assert five[1].argmax() == 2  # the middle of the hill is its top


def test_windows_lie_anywhere_and_hold_the_right_pixels():
    window = Window(2, 3, 5, "linf", torch.zeros(1))
    draws = torch.cartesian_prod(torch.linspace(0, 0.999, 20), torch.linspace(0, 0.999, 40))
    cells = window.at(window.corners(draws), 1)[:, 0]
    assert set(cells[:, 0].tolist()) == {0, 1, 2, 3, 5, 6, 7, 8}
    assert torch.equal(cells - cells[:, :1], torch.tensor([[0, 1, 5, 6]]).expand(len(cells), -1))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (28, 28), (32, 32), (3, 7)])
@pytest.mark.parametrize("norm", NORMS)
def test_the_start_spends_the_whole_radius(norm, height, width):
    threat = Threat(norm, Fraction(1, 100))
    x = torch.full((4, 3, height * width), 0.5, dtype=torch.float64)
    start = first_points(x, ImageStreams(0, ids=torch.arange(4)), threat, height, width)
    torch.testing.assert_close(threat.size(start - x), torch.full((4,), 0.01, dtype=torch.float64))
    if norm == "linf":
        stripes = (start - x).view(4, 3, height, width)
        assert torch.equal(stripes, stripes[:, :, :1].expand_as(stripes))
        assert stripes.sign().unique().tolist() == [-1, 1]


# Beside other libraries


@pytest.mark.parametrize("norm", NORMS)
def test_no_weaker_than_the_authors_code(norm):
    """The Square of AutoAttack with as many queries."""
    reference = pytest.importorskip("pyautoattack.square")
    model, x, y = robust_digits(norm).first(500)
    threat, queries = THREATS[norm], 150
    ours = robust_accuracy(model, square(model, x, y, threat=threat, queries=queries), y)
    attack = reference.SquareAttack(
        model, norm=norm.capitalize(), n_queries=queries, eps=threat.radius, device="cpu", seed=0
    )
    with torch.random.fork_rng():
        theirs = robust_accuracy(model, attack.perturb(x, y), y)
    assert ours <= theirs + 0.5
    assert 10 < theirs < 90  # something was at stake


def test_no_weaker_than_art():
    evasion = pytest.importorskip("art.attacks.evasion")
    estimators = pytest.importorskip("art.estimators.classification")
    model, x, y = robust_digits("linf").first(500)
    ours = robust_accuracy(model, square(model, x, y, threat=THREATS["linf"], queries=100), y)
    classifier = estimators.PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=(1, 8, 8), nb_classes=10, clip_values=(0, 1), device_type="cpu"
    )
    attack = evasion.SquareAttack(classifier, eps=0.2, max_iter=100, nb_restarts=1, p_init=0.8, verbose=False)
    x_adv = torch.from_numpy(attack.generate(x.numpy(), y.numpy()))
    assert ours <= robust_accuracy(model, x_adv, y) + 0.5


# What every attack promises


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError("a gradient was asked for")


class BlackBox(nn.Module):
    """Answers queries; refuses to take part in any graph."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        assert not torch.is_grad_enabled()
        return NoBackward.apply(self.inner(x)) if x.sum() > -1 else None


def test_only_queries_are_made():
    model, x, y = robust_digits("linf").first(60)
    with counted_passes() as passes:
        hidden = square(BlackBox(model), x, y, threat=THREATS["linf"], queries=50)
    open_ = square(model, x, y, threat=THREATS["linf"], queries=50)
    assert torch.equal(model(hidden).argmax(1) == y, model(open_).argmax(1) == y)
    assert passes.backward == 0


@pytest.mark.parametrize("norm", NORMS)
def test_inside_ball_and_box_and_same_generator_same_output(norm):
    model, x, y = robust_digits(norm).first(100)
    threat = THREATS[norm]

    def attacked(seed):
        generator = torch.Generator().manual_seed(seed)
        return square(model, x, y, threat=threat, queries=60, generator=generator)

    x_adv = attacked(0)
    assert torch.equal(attacked(0), x_adv)
    assert not torch.equal(attacked(1), x_adv)
    assert (threat.size(x_adv - x) <= threat.radius * (1 + 1e-6)).all()
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    robust = model(x_adv).argmax(1) == y
    assert torch.equal(x_adv[robust], x[robust])
    assert 0.1 < robust.float().mean() < 0.95


@pytest.mark.parametrize("norm", NORMS)
def test_verdicts_do_not_depend_on_the_batch(norm):
    model, x, y = robust_digits(norm).first(21)

    def verdicts(x, y, size):
        batches = zip(x.split(size), y.split(size), strict=True)
        return torch.cat(
            [
                model(square(model, a, b, threat=THREATS[norm], queries=40, restarts=2)).argmax(1) == b
                for a, b in batches
            ]
        )

    whole = verdicts(x, y, 500)
    assert torch.equal(verdicts(x, y, 7), whole)
    assert torch.equal(verdicts(x, y, 1), whole)
    assert torch.equal(verdicts(x.flip(0), y.flip(0), 500).flip(0), whole)


@pytest.mark.parametrize("norm", NORMS)
def test_more_queries_restarts_and_radius_never_help_the_model(norm):
    model, x, y = robust_digits(norm).first(200)
    threat = THREATS[norm]

    def robust(times=1, **knobs):
        wider = Threat(norm, times * threat.eps)
        return robust_accuracy(model, square(model, x, y, threat=wider, **{"queries": 40} | knobs), y)

    base = robust()
    assert robust(queries=160) <= base
    assert robust(restarts=3) <= base
    assert robust(times=Fraction(3, 2)) < base < robust(times=Fraction(1, 2))


def test_images_that_fell_cost_nothing():
    model, x, y = natural_digits().first(200)
    with counted_passes() as passes:
        square(model, x, y, threat=Threat("linf", Fraction(3, 10)), queries=1000)
    assert passes.forward < 0.05 * 1000 * len(x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("classes", "channels", "height", "width"), [(2, 3, 8, 8), (3, 1, 6, 9), (4, 2, 3, 3)])
def test_few_classes_colours_and_any_shape(norm, classes, channels, height, width):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 16), nn.Tanh(), nn.Linear(16, classes))
    x = torch.rand(8, channels, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model[3].bias.sub_(model(x).mean(0))
    y = model(x).argmax(1)
    threat = Threat(norm, 3 * THREATS[norm].eps)
    x_adv = square(model, x, y, threat=threat, queries=200)
    assert (model(x_adv).argmax(1) != y).any()
    assert (threat.size(x_adv - x) <= threat.radius * (1 + 1e-6)).all()
    torch.testing.assert_close(square(model, x[:1], y[:1], threat=threat, queries=200), x_adv[:1], atol=1e-5, rtol=0)
    assert square(model, x[:0], y[:0], threat=threat).shape == x[:0].shape
    strided = x.new_zeros(8, channels, height, 2 * width)[..., ::2].copy_(x)
    torch.testing.assert_close(square(model, strided, y, threat=threat, queries=200), x_adv, atol=1e-5, rtol=0)


def test_the_model_is_left_as_it_was():
    model, x, y = natural_digits().first(20)
    model = copy.deepcopy(model).train()
    for wrapped in (model, BlackBox(model)):
        state = copy.deepcopy(wrapped.state_dict())
        square(wrapped, x, y, threat=THREATS["l2"], queries=5)
        assert all(module.training for module in wrapped.modules())
        assert all(p.requires_grad and p.grad is None for p in wrapped.parameters())
        assert all(torch.equal(state[key], value) for key, value in wrapped.state_dict().items())


def test_what_cannot_be_attacked_is_refused():
    x, y = torch.full((1, 1, 4, 4), 0.4), torch.tensor([0])
    with pytest.raises(UserError, match="shape"):
        square(Brightness(), x.flatten(1), y, threat=THREATS["linf"])
    for knob in ("queries", "restarts"):
        with pytest.raises(UserError, match=knob):
            square(Brightness(), x, y, threat=THREATS["linf"], **{knob: 0})


@pytest.mark.parametrize("images", [24, 7])
def test_the_same_path_in_patches(images, monkeypatch):
    """Windows are looked at alone where that is faster; what is found, and when, stays the same."""
    model = build_model("resnet18", classes=3, width=8, seed=1).eval()
    x = torch.rand(images, 3, 32, 32, generator=generator("x"))
    with torch.no_grad():
        head = next(module for module in model.modules() if isinstance(module, nn.Linear))
        head.bias -= model(x).mean(0)  # else all images are of one class, and far from the others
        y = model(x).argmax(1)
    asked, call = [], Patches.__call__
    monkeypatch.setattr(Patches, "__call__", lambda self, *given: (asked.append(len(given[0])), call(self, *given))[1])
    found = []
    for worthwhile in ((1.0, 0.0), (math.inf, 0.0)):
        monkeypatch.setattr(patches, "WORTHWHILE", worthwhile)
        found.append(square(model, x, y, threat=Threat.parse("linf:1/50"), queries=150))
    assert sum(asked) > 100 * misclassified(model, found[0], y).logical_not().sum()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    broken = misclassified(model, found[0], y)
    assert broken.any()
    assert not broken.all()
