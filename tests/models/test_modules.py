"""Parts of a network by the names of its modules."""

from fractions import Fraction as Fr

import pytest
import torch
from torch import nn

from generalist import UserError, build_model
from generalist.models.modules import (
    LastShare,
    Patterns,
    depth_below,
    depths,
    describe,
    replace_tensors_,
    select_tensors,
    tensor_names,
)


def cnn():
    return build_model("small_cnn", classes=3, channels=1, size=8, width=4)


def resnet():
    return build_model("resnet18", classes=3, channels=1, size=8, width=2)


def named(model, *patterns):
    return {name.removeprefix("network.") for name in select_tensors(model, Patterns(patterns))}


def test_a_module_is_meant_with_all_that_is_below_it_and_the_names_are_those_of_the_network():
    found = named(resnet(), "layer4.1", "fc")
    assert {"fc.weight", "fc.bias", "layer4.1.conv1.weight", "layer4.1.bn2.num_batches_tracked"} <= found
    assert all(name.startswith(("layer4.1.", "fc.")) for name in found)
    assert "layer4.1" not in {name.rpartition(".")[0] for name in named(resnet(), "layer4.0")}


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [("layer4.*", "layer4.0.conv1.weight", "layer3.0.conv1.weight"),
     ("*.bn1", "layer2.1.bn1.bias", "layer2.1.bn2.bias"),
     ("layer?", "layer1.0.conv1.weight", "conv1.weight"), ("fc.bias", "fc.bias", "fc.weight"),
     ("*", "conv1.weight", "none"), ("bn1", "bn1.running_mean", "layer1.0.bn1.weight")],
)  # fmt: skip
def test_patterns_are_those_of_a_shell(pattern, inside, outside):
    found = named(resnet(), pattern)
    assert inside in found
    assert outside not in found


def test_a_module_that_is_not_a_classifier_has_its_own_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    assert select_tensors(model, Patterns(("2",))) == {"2.weight", "2.bias"}


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("layr4", "did you mean 'layer4'"), ("layer4.9.conv1", "did you mean 'layer4.1.conv1'"), ("Layer4", "'layer4'"),
     ("zzz", "unknown module 'zzz'; known: conv1, bn1, layer1, layer2, layer3, layer4, fc"), ("q" * 900, "qqq")],
)  # fmt: skip
def test_a_pattern_that_matches_nothing_is_refused_with_the_near_miss(pattern, says):
    with pytest.raises(UserError, match="unknown module") as caught:
        select_tensors(resnet(), Patterns(("fc", pattern)))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_near_miss_of_a_network_with_hundreds_of_modules_is_suggested_too():
    with pytest.raises(UserError, match="did you mean 'layer4'"):
        select_tensors(build_model("resnet50", classes=3, channels=1, size=8, width=1), Patterns(("layr4",)))


@pytest.mark.parametrize(
    ("share", "modules"),
    [("1/6", "fc"), ("1/4", "conv5, bn5, fc"), ("1/100", "fc"), ("1/2", "conv4, bn4, conv5, bn5, fc")],
)
def test_the_last_share_counts_layers_with_a_weight_and_takes_one_at_least(share, modules):
    model = cnn()
    found = select_tensors(model, LastShare(Fr(share)))
    assert describe(model, found) == modules
    assert found < set(tensor_names(model))
    assert select_tensors(model, LastShare(Fr(1))) == set(tensor_names(model))


def test_depth_runs_from_the_first_layer_to_the_last_and_batchnorm_goes_with_its_layer():
    found = {name.removeprefix("network."): depth for name, depth in depths(cnn()).items()}
    assert found["conv1.weight"] == found["bn1.running_var"] == 0
    assert found["fc.weight"] == found["fc.bias"] == 1
    assert [found[f"conv{i}.weight"] for i in range(1, 6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert depths(nn.Linear(2, 2)) == {"weight": 0, "bias": 0}


def test_a_backward_pass_goes_down_to_the_first_layer_that_is_trained():
    model = cnn()
    assert depth_below(model, tensor_names(model)) == 1
    assert depth_below(model, select_tensors(model, Patterns(("fc",)))) == pytest.approx(1 / 6)
    assert depth_below(model, select_tensors(model, Patterns(("conv2", "fc")))) == pytest.approx(5 / 6)


@pytest.mark.parametrize("patterns", [("layer4.1", "fc"), ("*.conv1",), ("layer1", "layer2.0.bn1"), ("fc.bias",)])
def test_a_description_names_the_tensors_and_no_others(patterns):
    model = resnet()
    chosen = select_tensors(model, Patterns(patterns))
    assert select_tensors(model, Patterns(tuple(describe(model, chosen).split(", ")))) == chosen


def test_shared_tensors_are_the_same_memory_and_the_others_are_not():
    first, second = cnn(), cnn()
    names, shared = select_tensors(first, Patterns(("conv1", "bn1"))), {}
    for model in (first, second):
        replace_tensors_(model, shared, sorted(names))
    a, b = first.state_dict(keep_vars=True), second.state_dict(keep_vars=True)
    for name in a:
        assert (a[name].data_ptr() == b[name].data_ptr()) == (name in names), name
    with torch.no_grad():
        b["network.conv1.weight"].fill_(3)
    assert (a["network.conv1.weight"] == 3).all()
