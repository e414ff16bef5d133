"""Checkpoints as others write them: any prefix, any nesting, normalisation inside, beside or given."""

import argparse

import pytest
import torch
from torch import nn

import strangers
from generalist.core.errors import UserError
from generalist.models import build_model, load_weights

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Norm(nn.Module):
    def __init__(self, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), *, persistent=True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=persistent)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=persistent)

    def forward(self, x):
        return (x - self.mean) / self.std


def normed(num_classes=3):
    """A builder as README's recipe has them: normalisation and network in a row."""
    return nn.Sequential(Norm(MEAN, STD), strangers.Plain(num_classes))


def source():
    torch.manual_seed(7)
    network = strangers.Plain()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def prefixed(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


STATE = source().state_dict()
STATISTICS = {"mean": torch.tensor(MEAN).view(1, 3, 1, 1), "std": torch.tensor(STD).view(1, 3, 1, 1)}
STYLES = {
    "bare": STATE,
    "parallel": prefixed(STATE, "module."),
    "compiled": prefixed(STATE, "_orig_mod.module."),
    "lightning": {"epoch": 3, "state_dict": prefixed(STATE, "model."), "hparams": {"lr": 0.1}},
    "deep-prefix": prefixed(STATE, "student.encoder.net."),
    "with-optimizer": {"net": STATE, "optimizer": {"state": {0: {"momentum_buffer": torch.ones(3)}}}, "acc": 90.1},
    "second-of-two": prefixed(STATE, "1."),
    "odd-nesting": {"checkpoint": {"weights": prefixed(STATE, "module.")}},
}


def saved(tmp_path, content, name="w.pt"):
    torch.save(content, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("builder", ["strangers:Plain", "test_foreign_weights:normed"])
def test_weights_are_found_under_any_prefix(tmp_path, style, builder):
    model = build_model(builder, classes=3, size=8)
    load_weights(model, saved(tmp_path, STYLES[style]))
    network = model.network[1] if "normed" in builder else model.network
    assert all(torch.equal(STATE[name], value) for name, value in network.state_dict().items())
    if "normed" in builder:  # which the files do not have: the model's own
        torch.testing.assert_close(model.network[0].mean.flatten(), torch.tensor(MEAN))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.ckpt", "w.model", "w.bin", "best.pth.tar"])
def test_weights_have_many_suffixes(tmp_path, name):
    load_weights(build_model("strangers:Plain", classes=3, size=8), saved(tmp_path, STATE, name))


@pytest.mark.parametrize(
    "content",
    [
        {**STATE, **STATISTICS},
        {**STATE, "mu": STATISTICS["mean"], "sigma": STATISTICS["std"]},
        {**prefixed(STATE, "module.model."), **prefixed(STATISTICS, "module.normalize.")},
        {"state_dict": {**prefixed(STATE, "1."), **prefixed(STATISTICS, "0.")}},
        {"state_dict": prefixed(STATE, "module."), "mean": list(MEAN), "std": list(STD)},
        {"net": STATE, **STATISTICS},
    ],
    ids=["beside", "mu-sigma", "parallel", "in-a-row", "lists-at-the-top", "tensors-at-the-top"],
)
def test_normalisation_in_the_file_is_used(tmp_path, content):
    model = build_model("strangers:Plain", classes=3, size=8)
    with pytest.warns(UserWarning, match=r"mean 0.4914,0.4822,0.4465"):
        load_weights(model, saved(tmp_path, content))
    x = strangers.images()[0].float() / 255
    expected = nn.Sequential(Norm(MEAN, STD), source())
    torch.testing.assert_close(model(x), expected(x))
    assert model.spec.mean == pytest.approx(MEAN)
    there = build_model("test_foreign_weights:other_numbers", classes=3, size=8)
    load_weights(there, tmp_path / "w.pt")
    torch.testing.assert_close(there.eval()(x), expected(x))


def other_numbers(num_classes=3):
    return nn.Sequential(Norm(), strangers.Plain(num_classes))


def test_normalisation_is_not_done_twice(tmp_path):
    model = build_model("strangers:Plain", classes=3, size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(UserError, match=r"mean 0.4914.*already"):
        load_weights(model, saved(tmp_path, {**STATE, **STATISTICS}))
    same = build_model("strangers:Plain", classes=3, size=8, mean=MEAN, std=STD)
    load_weights(same, tmp_path / "w.pt")
    assert same.spec.mean == MEAN


def test_statistics_of_whole_numbers_are_not_guessed_at(tmp_path):
    wide = {name: 255 * value for name, value in STATISTICS.items()}
    with pytest.raises(UserError, match="--mean"):
        load_weights(build_model("strangers:Plain", classes=3, size=8), saved(tmp_path, {**STATE, **wide}))


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({**prefixed(STATE, "a."), **prefixed(STATE, "b.")}, ("several networks", "'a', 'b'")),
        ({"first": STATE, "ema": STATE}, ("several networks", "'first', 'ema'")),
        ({name: value for name, value in STATE.items() if name != "fc.bias"}, ("has no", "fc.bias")),
        ({**STATE, "fc2.bias": torch.zeros(3)}, ("'network.fc2.bias'", "does not", "nearest")),
        ({**prefixed(STATE, "module."), "module.head.bias": torch.zeros(3)}, ("head.bias",)),
        ({"args": argparse.Namespace(lr=0.1), "state_dict": STATE}, ("argparse.Namespace", "torch.save")),
        (source(), ("Python objects", "state_dict")),
    ],
    ids=["two-prefixes", "two-nestings", "missing", "extra", "extra-in-prefix", "namespace", "whole-model"],
)
def test_what_is_unclear_or_partial_is_one_line_and_loads_nothing(tmp_path, content, parts):
    model = build_model("strangers:Plain", classes=3, size=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_weights(model, saved(tmp_path, content))
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_usual_name_wins_among_several_and_it_is_said(tmp_path):
    model = build_model("strangers:Plain", classes=3, size=8)
    other = {name: value + 1 for name, value in STATE.items()}
    with pytest.warns(UserWarning, match=r"'state_dict.module', 'ema'; 'state_dict.module' is loaded"):
        load_weights(model, saved(tmp_path, {"state_dict": prefixed(STATE, "module."), "ema": other}))
    assert torch.equal(model.network.fc.weight, STATE["fc.weight"])


def test_numbers_at_the_top_that_are_no_normalisation_are_left_alone(tmp_path):
    model = build_model("strangers:Plain", classes=3, size=8)
    load_weights(model, saved(tmp_path, {"state_dict": STATE, "mean": [90.1, 89.7, 90.3], "std": 0.2}))
    assert model.spec.mean is None


def test_what_is_not_used_is_said(tmp_path):
    content = {**prefixed(STATE, "model."), "criterion.weight": torch.ones(3)}
    with pytest.warns(UserWarning, match=r"1 tensors outside 'model' are not used, such as 'criterion.weight'"):
        load_weights(build_model("strangers:Plain", classes=3, size=8), saved(tmp_path, content))
