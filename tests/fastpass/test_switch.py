"""One function, one switch: with it off, the model itself runs, and verdicts are the same."""

import ast
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import generalist
from generalist import UserError, fastpass
from generalist.attacks import STANDARD, autoattack, misclassified
from generalist.core.rng import generator
from generalist.fastpass import allocator, patches
from generalist.fastpass.winograd import WinogradConv2d
from generalist.models import build_model

ROOT = Path(generalist.__file__).parent
SHORT = {"APGD_ce": {"steps": 4}, "APGD_t": {"steps": 2}, "FAB_t": {"steps": 2}, "Square": {"queries": 30}}


@pytest.fixture
def short_autoattack(monkeypatch):
    for label, (name, attack) in STANDARD.items():
        monkeypatch.setitem(STANDARD, label, (name, partial(attack, **SHORT[label])))


def large_model() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Wide enough for every faster pass: BatchNorm folds, 64 channels on 4×4 maps, windows of 32×32 images."""
    model = build_model("resnet18", classes=3, width=8, seed=1).eval()
    x = torch.rand(16, 3, 32, 32, generator=generator("x"))
    with torch.no_grad():
        head = next(module for module in model.modules() if isinstance(module, nn.Linear))
        head.bias -= model(x).mean(0)  # else all images are of one class, and far from the others
        return model, x, model(x).argmax(1)


@pytest.fixture
def used(monkeypatch):
    """The names of the faster passes that ran."""
    names = set()

    def noted(name, function):
        return lambda *given, **more: (names.add(name), function(*given, **more))[1]

    monkeypatch.setattr(patches, "WORTHWHILE", (1.0, 0.0))
    for owner, method in ((WinogradConv2d, "forward"), (fastpass.WindowPasses, "__call__")):
        monkeypatch.setattr(owner, method, noted(owner.__name__, getattr(owner, method)))
    monkeypatch.setattr("generalist.fastpass.prepare.folded", noted("folded", fastpass.prepare.folded))
    monkeypatch.setattr("generalist.fastpass.prepare.keep_freed_memory", noted("memory", lambda: None))
    return names


@pytest.mark.filterwarnings("ignore:targeted DLR is undefined for 3 classes")
@pytest.mark.usefixtures("short_autoattack")
@pytest.mark.parametrize("threat", ["linf:1/1000", "l2:1/20"])
def test_every_faster_pass_is_behind_the_switch(threat, used):
    model, x, y = large_model()
    fast = misclassified(model, autoattack(model, x, y, threat=threat), y)
    assert used == {"memory", "folded", "WinogradConv2d"} | ({"WindowPasses"} if threat.startswith("linf") else set())
    used.clear()
    with fastpass.switched_off():
        plain = misclassified(model, autoattack(model, x, y, threat=threat), y)
    assert used == set()
    assert fast.any()
    assert not fast.all()
    assert torch.equal(fast, plain)


def test_switched_off_the_model_itself_runs_frozen_and_is_left_as_it_was():
    model, x, _ = large_model()
    model.train()
    with fastpass.switched_off(), fastpass.prepared(model) as ready:
        assert ready.model is model
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert ready.window_passes(x, 3) is None
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    with fastpass.prepared(model) as ready:
        assert ready.model is not model
        assert ready.window_passes(x, 3) is not None


def test_the_switch_is_put_back():
    model, _, _ = large_model()
    with pytest.raises(KeyError), fastpass.switched_off():
        raise KeyError
    with fastpass.prepared(model) as ready:
        assert ready.model is not model


SCRIPT = """
from generalist import build_model, fastpass
model = build_model("small_cnn", classes=3, size=8, width=4)
with fastpass.prepared(model) as ready:
    print("plain" if ready.model is model else "fast")
"""


def test_the_environment_variable_works_in_a_process_of_its_own():
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent), "GENERALIST_FASTPASS": "0"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "plain"


@pytest.mark.parametrize(("value", "fast"), [("0", False), ("1", True), ("", True), (None, True)])
def test_the_environment_variable_is_zero_or_one(value, fast, monkeypatch):
    model, _, _ = large_model()
    monkeypatch.delenv("GENERALIST_FASTPASS", raising=False)
    if value is not None:
        monkeypatch.setenv("GENERALIST_FASTPASS", value)
    with fastpass.prepared(model) as ready:
        assert (ready.model is not model) == fast


def test_another_value_is_refused(monkeypatch):
    monkeypatch.setenv("GENERALIST_FASTPASS", "off")
    refused = pytest.raises(UserError, match=r"GENERALIST_FASTPASS must be 0 .* or 1 .*, got 'off'")
    with refused, fastpass.prepared(nn.Identity()):
        pass


def test_freed_memory_is_kept_once_per_process(monkeypatch):
    taken, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *given, **more: (taken.append(given), empty(*given, **more))[1])
    allocator.keep_freed_memory.cache_clear()
    for _ in range(3):
        with fastpass.prepared(nn.Identity()):
            pass
    assert taken.count((allocator.LARGE_BLOCK,)) == 1


def test_nothing_outside_knows_the_insides():
    files = [path for path in ROOT.rglob("*.py") if path.parent.name != "fastpass"]
    for path in [*files, *(ROOT.parent.parent / "benchmarks").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not [alias for alias in node.names if alias.name.startswith("generalist.fastpass.")], path
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("generalist.fastpass"):
                assert node.module == "generalist.fastpass", path
                assert {alias.name for alias in node.names} <= set(fastpass.__all__), path
