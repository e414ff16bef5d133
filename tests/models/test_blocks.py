"""The blocks that a network is measured by: named as `trains` names them, each tensor in one of them."""

import pytest
from torch import nn

from generalist import build_model
from generalist.models.modules import Patterns, blocks, module_names, select_tensors, tensor_names

RESNET = ["conv1", *(f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)), "fc"]
NETWORKS = {
    "small_cnn": ["conv1", "conv2", "conv3", "conv4", "conv5", "fc"],
    "resnet18": RESNET,
    "preact_resnet18": RESNET,
    "wrn-10-1": ["conv1", "layer1", "layer2", "layer3", "fc"],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_are_split_and_every_tensor_is_in_one_block(name: str) -> None:
    model = build_model(name, classes=10, size=16, width=2)
    found = blocks(model)
    assert list(found) == NETWORKS[name]
    assert [tensor for tensors in found.values() for tensor in tensors] != []
    assert sorted(tensor for tensors in found.values() for tensor in tensors) == sorted(tensor_names(model))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_names_of_a_block_select_its_tensors(name: str) -> None:
    model = build_model(name, classes=10, size=16, width=2)
    for tensors in blocks(model).values():
        assert select_tensors(model, Patterns(tuple(module_names(model, tensors)))) == set(tensors)


def test_a_batchnorm_goes_with_the_layer_before_it() -> None:
    model = build_model("small_cnn", classes=10, size=8, width=2)
    assert module_names(model, blocks(model)["conv5"]) == ["conv5", "bn5"]
    wide = build_model("wrn-10-1", classes=10, size=8, width=2)
    assert module_names(wide, blocks(wide)["layer3"]) == ["layer3", "bn1"]


def test_blocks_of_one_stage_together_have_its_name() -> None:
    model = build_model("resnet18", classes=10, size=16, width=2)
    found = blocks(model)
    assert module_names(model, [*found["layer4.0"], *found["layer4.1"], *found["fc"]]) == ["layer4", "fc"]


def test_somebody_elses_network() -> None:
    features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3))
    wrapped = nn.ModuleDict({"net": nn.ModuleDict({"features": features, "head": nn.Linear(2, 2)})})
    assert list(blocks(wrapped)) == ["net.features.0", "net.features.3", "net.head"]
    assert list(blocks(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))) == ["1"]
