"""What every attack promises, and PGD's known answers."""

import copy
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generalist import Threat, build_model
from generalist.attacks import attack_view, fgsm, frozen, margin, pgd
from generalist.core.rng import ImageStreams

THREATS = [Threat.parse(text) for text in ("linf:1/10", "l2:1/2", "l1:3")]


def images(count=6, channels=1, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, size, size, generator=generator), torch.arange(count) % 3


@pytest.fixture
def network():
    model = build_model("small_cnn", classes=3, channels=1, size=8, width=4)
    model.train()
    for _ in range(3):
        model(images(32, seed=1)[0])
    return model


def linear(weight, bias=None):
    """Two classes with logits (0, w·x + b)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(len(weight), 2, dtype=torch.float64))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].weight[1] = torch.tensor(weight)
        model[1].bias.copy_(torch.tensor([0.0, bias or 0.0]))
    return model


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_inside_ball_and_box_and_same_generator_same_output(network, threat):
    x, y = images()
    first, second = (pgd(network, x, y, threat=threat, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert (threat.size(first - x) <= threat.radius * (1 + 1e-5)).all()
    assert first.min() >= 0
    assert first.max() <= 1
    assert not torch.equal(first, pgd(network, x, y, threat=threat, generator=torch.Generator().manual_seed(4)))


class Untraceable(nn.Module):
    """Control flow that depends on the data, so BatchNorm cannot be folded and the model itself is attacked."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.sum() > -1 else self.inner(-x)


@pytest.mark.parametrize("wrap", [nn.Identity, Untraceable])
def test_the_model_is_left_as_it_was(network, wrap):
    model = nn.Sequential(network, wrap(nn.Identity())) if wrap is nn.Identity else wrap(network)
    model.train()
    network.network.bn1.eval()
    network.network.conv1.weight.requires_grad_(False)
    network.network.fc.weight.grad = torch.ones_like(network.network.fc.weight)
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    x, y = images()
    pgd(model, x, y, threat=THREATS[0], steps=2)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(network.network.fc.weight.grad, torch.ones_like(network.network.fc.weight))
    assert network.network.conv2.weight.grad is None
    assert not x.requires_grad


def test_the_mode_is_put_back_when_the_attack_fails(network):
    network.train()

    def broken(logits, y):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pgd(Untraceable(network), *images(), threat=THREATS[0], criterion=broken)
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_the_attack_sees_eval_mode(network):
    """In train mode BatchNorm would make one image's attack depend on the others."""
    x, y = images()
    network.train()
    both = pgd(network, x, y, threat=THREATS[0], generator=ImageStreams(0, ids=torch.arange(6)))
    alone = pgd(network, x[:1], y[:1], threat=THREATS[0], generator=ImageStreams(0, ids=torch.arange(1)))
    torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_batch_of_one_two_classes_layouts_and_autocast(threat):
    model = build_model("small_cnn", classes=2, channels=3, size=8, width=4)
    x, y = images(4, channels=3)
    y = y % 2
    assert pgd(model, x[:1], y[:1], threat=threat, steps=2).shape == (1, 3, 8, 8)
    plain = pgd(model, x, y, threat=threat, steps=2)
    last = pgd(model, x.contiguous(memory_format=torch.channels_last), y, threat=threat, steps=2)
    torch.testing.assert_close(plain, last, atol=1e-5, rtol=0)
    strided = torch.zeros(4, 3, 8, 16)[..., ::2].copy_(x)
    torch.testing.assert_close(pgd(model, strided, y, threat=threat, steps=2), plain, atol=1e-5, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        low = pgd(model, x, y, threat=threat, steps=2)
    assert low.dtype == torch.float32
    assert (threat.size(low - x) <= threat.radius * (1 + 1e-5)).all()


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_reaches_the_closed_form_optimum_of_a_linear_model(threat):
    """max w·δ over the ball is eps·‖w‖_dual when the box is far away."""
    w = [0.5, -2.0, 1.0, 0.25]
    x = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
    threat = Threat(threat.norm, Fraction(1, 20))
    dual = {"linf": 3.75, "l2": torch.tensor(w).norm().item(), "l1": 2.0}[threat.norm]
    x_adv = pgd(linear(w), x, torch.tensor([0]), threat=threat, steps=40)
    assert ((x_adv - x).flatten() @ torch.tensor(w, dtype=torch.float64)).item() == pytest.approx(dual / 20, rel=1e-4)


def test_fgsm_is_one_signed_step_of_full_size():
    x = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
    x_adv = fgsm(linear([0.5, -2.0, 1.0, 0.25]), x, torch.tensor([0]), threat=Threat("linf", Fraction(1, 10)))
    expected = torch.tensor([0.6, 0.4, 0.6, 0.6], dtype=torch.float64).view(1, 1, 2, 2)
    torch.testing.assert_close(x_adv, expected)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_equals_a_textbook_loop(network, threat):
    """The same start, gradient by loss.backward() through the unfolded model, the step written out by hand."""
    x, y = images()
    eps, step = threat.radius, threat.radius / 4
    ours = pgd(network, x, y, threat=threat, steps=5, generator=ImageStreams(0, ids=torch.arange(6)))
    theirs = threat.random_start(x, ImageStreams(0, ids=torch.arange(6)))
    with frozen(network):
        for _ in range(5):
            theirs = theirs.detach().requires_grad_()
            F.cross_entropy(network(theirs), y).backward()
            g = theirs.grad
            if threat.norm == "linf":
                theirs = (theirs + step * g.sign()).clamp(min=x - eps, max=x + eps)
            elif threat.norm == "l2":
                delta = theirs + step * g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1) - x
                theirs = x + delta * (eps / delta.flatten(1).norm(dim=1).clamp_min(eps)).view(-1, 1, 1, 1)
            else:
                theirs = threat.project(theirs.detach() + step * threat.steepest(_movable(g, theirs), density=0.01), x)
            theirs = theirs.clamp(0, 1)
    torch.testing.assert_close(ours, theirs.detach(), atol=2e-4, rtol=0)


def _movable(g, x):
    stuck = ((x <= 0) & (g < 0)) | ((x >= 1) & (g > 0))
    return g.masked_fill(stuck, 0)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_more_steps_raise_the_loss(network, threat):
    x, y = images(24)

    def loss(steps):
        with attack_view(network) as view, torch.no_grad():
            return F.cross_entropy(view(pgd(network, x, y, threat=threat, steps=steps)), y).item()

    assert loss(0) < loss(3) < loss(30)


def test_any_criterion_can_be_raised(network):
    x, y = images()
    raised = pgd(network, x, y, threat=THREATS[0], criterion=margin)
    with attack_view(network) as view, torch.no_grad():
        assert (margin(view(raised), y) > margin(view(x), y)).all()


def test_margin_is_positive_exactly_where_the_image_is_misclassified():
    logits, y = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1, 0])
    torch.testing.assert_close(margin(logits, y), torch.tensor([-1.0, 1.0, 3.0]))
