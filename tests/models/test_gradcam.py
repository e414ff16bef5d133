"""Grad-CAM shows the evidence of networks whose evidence is known, and leaves a model as it was."""

import pytest
import torch
from torch import Tensor, nn

from generalist.core.rng import generator
from generalist.models.gradcam import activation_map, gradcam
from model_cases import NAMES, disturb_, images, narrow

TOP_LEFT, BOTTOM_RIGHT = (slice(0, 4), slice(0, 4)), (slice(4, 8), slice(4, 8))


class Corners(nn.Module):
    """Channel 0 sees the upper left corner alone, channel 1 the lower right one."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.zeros(1, 2, 8, 8)
        mask[0, 0][TOP_LEFT] = 1
        mask[0, 1][BOTTOM_RIGHT] = 1
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 2, -1, -1) * self.mask


class Looking(nn.Module):
    """Class 0 is a bright upper left corner, class 1 a bright lower right one. `spoilt` modules must not be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.corners, self.spoilt = Corners(), nn.Conv2d(1, 3, 3, padding=1)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.corners(x)
        self.spoilt(x)  # the last map that is made, and nothing depends on it
        return self.fc(self.pool(seen).flatten(1))


class ChannelsLast(nn.Module):
    """The same evidence in maps [B, H, W, C], as some transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.corners, self.linear = Corners(), nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.corners(x).movedim(1, 3)).mean((1, 2))


def bright(*corners: tuple[slice, slice]) -> Tensor:
    x = 0.1 * torch.rand(len(corners), 1, 8, 8, generator=generator("dim"))
    for image, corner in zip(x, corners, strict=True):
        image[0][corner] += 0.8
    return x


@pytest.mark.parametrize("network", [Looking, ChannelsLast])
def test_the_corner_that_a_network_looks_at_lights_up(network: type[nn.Module]) -> None:
    x = bright(TOP_LEFT, BOTTOM_RIGHT)
    heat = gradcam(network(), x)
    assert heat.shape == (2, 8, 8)
    for row, (lit, dark) in zip(heat, [(TOP_LEFT, BOTTOM_RIGHT), (BOTTOM_RIGHT, TOP_LEFT)], strict=True):
        assert row[lit].min() > 0.5
        assert row.max() == 1
        assert row[dark].max() == 0
        assert row.count_nonzero() == 16


def test_a_given_class_is_explained_instead_of_the_predicted_one() -> None:
    x, model = bright(TOP_LEFT), Looking()
    assert model(x).argmax(1).item() == 0
    heat = gradcam(model, x, torch.tensor([1]))[0]
    assert heat[TOP_LEFT].max() == 0
    assert heat[BOTTOM_RIGHT].max() == 1
    torch.testing.assert_close(gradcam(model, x, torch.tensor([0])), gradcam(model, x))


def test_maps_are_resized_to_the_images() -> None:
    """Of maps of 2 × 2 the value at a corner of the image is that of the nearest cell."""
    model = nn.Sequential(Corners(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 2, bias=False))
    with torch.no_grad():
        model[3].weight.copy_(torch.tensor([[1.0] * 4 + [0.0] * 4, [0.0] * 4 + [1.0] * 4]))
    heat = gradcam(model, bright(TOP_LEFT))[0]
    assert heat[0, 0] == heat.max() == 1
    assert heat[7, 7] == 0


def test_without_evidence_a_map_is_zero() -> None:
    model = Looking()
    with torch.no_grad():
        model.fc.weight.neg_()
    heat = gradcam(model, bright(TOP_LEFT))
    assert heat.abs().max() == 0
    assert activation_map(model, bright(TOP_LEFT)).abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_network_is_left_as_it_was(name: str) -> None:
    model, x = narrow(name), images(3)
    disturb_(model)
    model.train()
    first = next(model.parameters())
    first.requires_grad_(False)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    heat = gradcam(model, x)
    assert heat.shape == (3, 32, 32)
    assert 0 <= heat.min() <= heat.max() <= 1
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()].count(False) == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert not x.requires_grad
    assert torch.equal(heat, gradcam(model, x))


def test_a_failing_network_loses_its_hooks_too() -> None:
    model = Looking()
    with pytest.raises(RuntimeError):
        gradcam(model, torch.rand(1, 3, 5, 5))
    assert not any(module._forward_hooks for module in model.modules())
