"""The short way through a convolution of small maps leads to the same place."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from generalist.attacks import attack_view
from generalist.fastpass import winograd
from generalist.fastpass.folding import fold_batchnorm, folded
from generalist.fastpass.winograd import FEWEST_CHANNELS, WinogradConv2d, convolve, transformed
from model_cases import disturb_, images, narrow


def convolution(inputs: int = 64, outputs: int = 96, **options: object) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options).requires_grad_(False)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("side", FEWEST_CHANNELS)
@pytest.mark.parametrize(("images", "inputs", "outputs"), [(1, 1, 1), (3, 5, 2), (20, 16, 33)])
def test_it_is_the_same_convolution(images, inputs, outputs, side, bias, monkeypatch):
    """In float64, where the two must agree to the last digits: so must their gradients, and the gradients of those."""
    monkeypatch.setattr(winograd, "float32_on_cpu", lambda x: True)
    monkeypatch.setitem(FEWEST_CHANNELS, side, 1)
    conv = convolution(inputs, outputs, bias=bias).double()
    x = torch.randn(images, inputs, side, side, dtype=torch.float64, requires_grad=True)
    short, plain = WinogradConv2d(conv)(x), conv(x)
    torch.testing.assert_close(short, plain, rtol=0, atol=1e-12)
    ahead = torch.randn_like(plain, requires_grad=True)
    gradients = [torch.autograd.grad((out * ahead).sum(), x, create_graph=True)[0] for out in (short, plain)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(*(torch.autograd.grad(gradient.square().sum(), ahead)[0] for gradient in gradients))


@pytest.mark.parametrize("side", FEWEST_CHANNELS)
@pytest.mark.parametrize("channels", [64, 512])
def test_rounding_stays_small(channels, side):
    conv, x = convolution(channels, channels), torch.randn(30, channels, side, side).relu()
    exact = F.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=1)
    short = convolve(x, transformed(conv.weight), conv.bias)
    assert (short - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize(("side", "channels"), [(4, 64), (4, 128), (8, 64), (8, 256)])
def test_an_image_gets_the_same_bits_in_any_company(side, channels):
    short, x = WinogradConv2d(convolution(channels, channels)), torch.randn(100, channels, side, side)

    def found(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = short(x.requires_grad_())
        return out, torch.autograd.grad(out.square().sum(), x)[0]

    whole = found(x)
    for count in (16, 17, 33, 64, 99):
        for part, of_all in zip(found(x[:count].detach()), whole, strict=True):
            assert torch.equal(part, of_all[:count])


def test_other_maps_and_types_take_the_plain_way(monkeypatch):
    conv = convolution()
    short = WinogradConv2d(conv)
    taken = []
    monkeypatch.setattr(winograd, "convolve", lambda *given: taken.append(1) or convolve(*given))
    for shape in ((2, 64, 16, 16), (2, 64, 12, 12), (2, 64, 4, 8), (2, 64, 5, 5), (64, 4, 4), (0, 64, 4, 4)):
        x = torch.randn(shape)
        assert torch.equal(short(x), conv(x))
    x = torch.randn(2, 64, 4, 4).double()
    assert torch.equal(short.double()(x), conv.double()(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert short.float()(torch.randn(2, 64, 4, 4)).dtype == torch.bfloat16
    assert not taken
    short(torch.randn(2, 64, 4, 4))
    assert taken


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(64, 64, 3),
        nn.Conv2d(64, 64, 1, padding=1),
        nn.Conv2d(64, 64, 3, 2, 1),
        nn.Conv2d(64, 32, 3, 1, 1),
        nn.Conv2d(64, 64, 3, 1, 1, groups=2),
        nn.Conv2d(64, 64, 3, padding="same"),
        nn.Conv2d(64, 64, 3, 1, 1, padding_mode="reflect"),
    ],
)
def test_only_what_it_is_made_for(other):
    assert WinogradConv2d.suits(convolution())
    assert not WinogradConv2d.suits(other)


def test_a_shadow_takes_it_and_follows_its_model():
    model = narrow("resnet18", width=8).eval()
    disturb_(model)
    shadow = folded(model)
    assert any(isinstance(module, WinogradConv2d) for module in shadow.modules())
    for _ in range(2):
        x = images(16).requires_grad_()
        found, expected = ((out := net(x), torch.autograd.grad(out.sum(), x)[0]) for net in (shadow, model))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        assert folded(model) is shadow


def test_first_in_inference_mode_then_with_a_gradient():
    winograd._transforms.cache_clear()
    short, x = WinogradConv2d(convolution()), torch.randn(2, 64, 4, 4)
    with torch.inference_mode():
        short(x)
    (gradient,) = torch.autograd.grad(short(x.requires_grad_()).sum(), x)
    assert gradient.abs().max() > 0


def test_a_model_without_batchnorm_after_its_convolution_has_no_shadow():
    assert fold_batchnorm(nn.Sequential(convolution(), nn.ReLU())) is None


def test_a_gradient_asked_for_inside_autocast():
    short, x = WinogradConv2d(convolution()), torch.randn(2, 64, 4, 4, requires_grad=True)
    out = short(x).sum()
    (expected,) = torch.autograd.grad(out, x, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.autograd.grad(out, x)[0], expected)


@pytest.mark.parametrize("change", ["written to", "its data replaced", "replaced", "copied, then written to"])
def test_weights_that_change_are_noticed(change):
    short, x = WinogradConv2d(convolution()), torch.randn(16, 64, 4, 4)
    short(x)
    if change.startswith("copied"):
        short = deepcopy(short)
    if change.endswith("written to"):
        short.weight.mul_(2)
    elif change == "its data replaced":
        short.weight.data = 2 * short.weight
    else:
        short.weight = nn.Parameter(2 * short.weight, requires_grad=False)
    torch.testing.assert_close(short(x), nn.Conv2d.forward(short, x), rtol=0, atol=1e-4)


def test_nothing_large_is_left_behind_by_an_attack():
    model = narrow("resnet18", width=8)
    with attack_view(model) as view:
        view(images(16))
        inside = [module for module in view.modules() if isinstance(module, WinogradConv2d)]
        assert any(module._transformed for module in inside)
    assert not any(module._transformed for module in inside)
