"""Networks of timm and torchvision with the weights published with them, by packages that stand in for them."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import generalist
from generalist.core.errors import UserError
from generalist.models import build_model, published_weights
from generalist.models.pretrained import _published
from generalist.recipes.catalogue import load_recipe
from run_cases import weights

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Small(nn.Module):
    def __init__(self, classes: int, channels: int = 3, *, norms: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Conv2d(channels, channels, 1) for _ in range(norms)))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def create_model(name: str, *, pretrained: bool, num_classes: int, in_chans: int, depth: int = 1) -> nn.Module:
    if depth > 3:
        raise ValueError("too deep\nindeed")
    network = Small(num_classes, in_chans, norms=depth)
    network.pretrained_cfg = {"mean": MEAN, "std": STD} if pretrained else {}
    if pretrained:
        nn.init.constant_(network.body[0].weight, 0.5)
    return network


class Weights:
    DEFAULT: Any

    @staticmethod
    def transforms() -> Any:
        return types.SimpleNamespace(mean=list(MEAN), std=list(STD))


Weights.DEFAULT = Weights


def get_model(name: str, *, weights: Any, num_classes: int = 1000, **options: Any) -> nn.Module:
    network = Small(num_classes, norms=4 if name == "odd" and weights is None else 1)
    if weights is not None:
        nn.init.constant_(network.body[0].weight, 0.25)
    return network


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    _published.cache_clear()
    timm = types.SimpleNamespace(list_models=lambda: ["vit_tiny"], create_model=create_model)
    models = types.SimpleNamespace(
        list_models=lambda: ["resnet18", "odd"], get_model=get_model, get_model_weights=lambda name: Weights
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))


@pytest.mark.parametrize("name", ["timm/vit_tiny", "timm:vit_tiny", "torchvision/resnet18", "torchvision:resnet18"])
def test_a_network_is_built_with_random_weights_and_starts_from_the_published_ones(name: str) -> None:
    model = build_model(name, classes=4)
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 4)
    before = torch.get_rng_state()
    found = published_weights(name, classes=4, channels=3, seed=0, options={})
    assert torch.equal(before, torch.get_rng_state())
    model.network.load_state_dict(found.state)
    assert model.network.body[0].weight.unique().numel() == 1
    assert (found.mean, found.std) == (MEAN, STD)
    again = published_weights(name, classes=4, channels=3, seed=0, options={})
    _published.cache_clear()
    anew = published_weights(name, classes=4, channels=3, seed=0, options={})
    assert torch.equal(again.state["fc.weight"], anew.state["fc.weight"])  # the new last layer depends on the seed


def test_gray_images_are_normalised_by_the_mean_of_the_colours() -> None:
    found = published_weights("timm/vit_tiny", classes=2, channels=1, seed=0, options={"depth": 2})
    assert found.mean == pytest.approx((sum(MEAN) / 3,))


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("timm/vit_tyni", {}, "did you mean 'vit_tiny'"),
        ("timm/vit_tiny", {"depth": 4}, r"'depth': 4.*too deep$"),
        ("timm/vit_tiny", {"pretrained": True}, "init.from=pretrained"),
        ("torchvision/resnet1", {}, "did you mean 'resnet18'"),
    ],
)
def test_mistakes_are_one_line(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        build_model(name, classes=4, **options)


def test_what_cannot_be_tuned_is_said() -> None:
    given: dict[str, Any] = {"classes": 4, "channels": 3, "seed": 0, "options": {}}
    with pytest.raises(UserError, match=r"'small_cnn' has no published weights"):
        published_weights("small_cnn", **given)
    with pytest.raises(UserError, match=r"do not fit it"):
        published_weights("torchvision/odd", **given)
    with pytest.raises(UserError, match=r"data\.channels=3"):
        build_model("torchvision/resnet18", classes=4, channels=1)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_package_that_is_broken_is_one_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"'{package}/x' needs {package}"):
        build_model(f"{package}/x", classes=4)


def test_a_run_is_tuned_from_published_weights(tmp_path: Path) -> None:
    changes = {
        "model.name": "timm/vit_tiny", "model.width": None, "init.from": "pretrained", "training.epochs": 5,
        "data.limit": 64, "data.channels": 3, "learners.natural.trains": {"last": "1/4"}, "validation.images": 8,
        "training.batch_size": 32,
    }  # fmt: skip
    recipe = load_recipe("digits-generalist-late-t", changes)
    assert (recipe.init.from_, recipe.init.epoch) == ("pretrained", 0)  # not where late learners start
    run = generalist.train(recipe, out=tmp_path / "tuned")
    model = generalist.load(run.folder)
    assert model.spec.mean == pytest.approx(MEAN)
    assert (weights(run)["network.body.0.weight"] - 0.5).abs().max() < 0.4  # it began there


def test_a_model_without_published_weights_cannot_be_tuned(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no published weights"):
        generalist.train("digits-at", overrides={"init.from": "pretrained"}, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
