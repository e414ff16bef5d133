"""Weights of another project: paired by order and shape where names differ, and said how."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import generalist
from generalist.core.errors import UserError
from generalist.models import build_model, load_weights
from generalist.models.renaming import paired_by_order, renamed, rules


def theirs() -> nn.Module:
    """A small_cnn of width 4 as somebody else might write it."""
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    widths = (1, 4, 4, 8, 8, 16)
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.ModuleDict({"features": nn.Sequential(*layers), "head": nn.Linear(16, 10)})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save({"state_dict": theirs().state_dict()}, tmp_path / "theirs.pt")
    return tmp_path / "theirs.pt"


def ours() -> nn.Module:
    return build_model("small_cnn", classes=10, channels=1, size=8, width=4)


def test_the_error_suggests_how_names_pair(file: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_weights(ours(), file)
    said = str(caught.value)
    assert "by order and shape they would pair: " in said
    assert "features.0 → conv1, features.1 → bn1" in said
    assert caught.value.command == "--rename order"
    assert "\n" not in said


def test_tensors_are_paired_by_order(file: Path) -> None:
    model, state = ours(), theirs().state_dict()
    load_weights(model, file, rename="order")
    assert torch.equal(model.network.conv1.weight, state["features.0.weight"])
    assert torch.equal(model.network.conv5.weight, state["features.12.weight"])
    assert torch.equal(model.network.bn3.running_var, state["features.7.running_var"])
    assert torch.equal(model.network.fc.bias, state["head.bias"])


def test_tensors_are_renamed_as_told(file: Path) -> None:
    model = ours()
    rename = {f"features.{3 * n}": f"conv{n + 1}" for n in range(5)} | {
        f"features.{3 * n + 1}": f"bn{n + 1}" for n in range(5)
    }
    load_weights(model, file, rename={**rename, "head": "fc"})
    assert torch.equal(model.network.conv2.weight, theirs().state_dict()["features.3.weight"])
    with pytest.raises(UserError, match=r"has no 'haed' to rename; it has features\.0\.weight"):
        load_weights(ours(), file, rename={"haed": "fc"})


def test_what_does_not_pair_is_refused(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.zeros(3, 3)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="no set of tensors that pairs"):
        load_weights(ours(), tmp_path / "w.pt", rename="order")
    with pytest.raises(UserError) as caught:
        load_weights(ours(), tmp_path / "w.pt")
    assert "would pair" not in str(caught.value)


def test_rules_are_by_module_where_that_is_the_same() -> None:
    assert rules({"a.0.weight": "conv.weight", "a.0.bias": "conv.bias"}) == {"a.0": "conv"}
    crossed = {"a.weight": "x.weight", "a.bias": "y.bias"}
    assert rules(crossed) == crossed
    assert renamed("features.10.weight", {"features.1": "bn1"}) == "features.10.weight"
    one = {"w": torch.zeros(2)}
    assert paired_by_order(one, one, {"w": torch.zeros(3)}) is None


class Robust(nn.Module):
    """As RobustBench's models are: normalisation inside, by buffers `mu` and `sigma`."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.register_buffer("mu", torch.tensor([0.3]).view(1, 1, 1, 1))
        self.register_buffer("sigma", torch.tensor([0.4]).view(1, 1, 1, 1))
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(((x - self.mu) / self.sigma).flatten(1))


@pytest.mark.parametrize("with_statistics", [True, False])
def test_a_model_with_mu_and_sigma_inside_is_loaded_and_attacked(tmp_path: Path, with_statistics: bool) -> None:
    network = Robust()
    state = {f"module.{name}": tensor for name, tensor in network.state_dict().items()}
    if not with_statistics:  # files of theirs often lack them
        state = {name: tensor for name, tensor in state.items() if "linear" in name}
    torch.save(state, tmp_path / "robust.pt")
    model = build_model("test_renaming:Robust", classes=10, channels=1, size=8)
    load_weights(model, tmp_path / "robust.pt")
    x = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(model.eval()(x), network.eval()(x))
    record = generalist.evaluate(model, "digits", threats="linf:1/10", images=10).record()
    assert record["images"] == 10
    assert not [flag for flag in record["red_flags"] if "normalis" in flag["message"]]
