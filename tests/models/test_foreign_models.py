import sys
import types

import pytest
import torch
from torch import nn

from generalist.core.errors import UserError
from generalist.models import build_model, load_model, save_model
from model_cases import images

SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, channels=3, hidden=4):
        super().__init__()
        self.conv = nn.Conv2d(channels, hidden, 3)
        self.fc = nn.Linear(hidden, num_classes)
    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))

def build(*, classes, width=4):
    return Net(classes, hidden=width)

def passes_on(pretrained=False, **kwargs):
    return Net(**kwargs)

def not_a_module(classes):
    return classes

def fails(classes):
    raise RuntimeError("first\\nsecond")

number = 3
nested = type("Space", (), {"build": staticmethod(build)})
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module in the current directory, which is not on the import path."""
    (tmp_path / "my_networks.py").write_text(SOURCE)
    (tmp_path / "my_broken.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "my_syntax.py").write_text("def :\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "my_networks"
    for name in ("my_networks", "my_broken", "my_syntax"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", ["Net", "build", "passes_on", "nested.build"])
def test_a_users_network_is_found_and_wrapped(mine, path):
    before = list(sys.path)
    model = build_model(f"{mine}:{path}", classes=7, mean=[0.5] * 3, std=[0.5] * 3)
    assert sys.path == before
    assert model(images()).shape == (2, 7)
    assert model.network.conv.weight.is_contiguous(memory_format=torch.channels_last)
    again = build_model(f"{mine}:{path}", classes=7)
    assert torch.equal(model.network.fc.weight, again.network.fc.weight)


def test_knobs_reach_the_users_callable(mine):
    assert build_model(f"{mine}:build", classes=2, width=9).network.fc.in_features == 9
    assert build_model(f"{mine}:Net", classes=2, channels=1, hidden=6).network.conv.weight.shape == (6, 1, 3, 3)
    assert build_model(f"{mine}:passes_on", classes=2, hidden=6).network.fc.in_features == 6


def test_a_users_network_survives_the_disk(mine, tmp_path):
    model = build_model(f"{mine}:Net", classes=7, hidden=5, seed=3).eval()
    save_model(model, tmp_path / "mine")
    assert torch.equal(load_model(tmp_path / "mine")(images()), model(images()))


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("no_such_module:build", {}, "no module 'no_such_module'"),
        ("torch.no_such_module:build", {}, "no module 'torch.no_such_module'"),
        ("my_networks:biuld", {}, "did you mean 'build'?"),
        ("my_networks:number", {}, "is a int"),
        ("my_networks:not_a_module", {}, "torch.nn.Module"),
        ("my_networks:fails", {}, "RuntimeError: first"),
        ("my_networks:", {}, "module:callable"),
        ("my_networks:Net", {"width": 3}, "width"),
        ("my_networks:Net", {"hiden": 3}, "did you mean 'hidden'?"),
        ("my_broken:build", {}, "no_such_thing_at_all"),
        ("my_syntax:build", {}, "SyntaxError"),
    ],
)
def test_mistakes_are_told_in_one_line(mine, name, options, told):
    with pytest.raises(UserError) as caught:
        build_model(name, classes=5, **options)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_timm_is_asked_by_name(monkeypatch):
    def create_model(name: str, *, pretrained: bool, num_classes: int, in_chans: int, depth: int = 1) -> nn.Module:
        if depth > 1:
            raise ValueError("too deep\nindeed")
        return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * 64, num_classes))

    fake = types.SimpleNamespace(list_models=lambda: ["vit_tiny"], create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", fake)
    assert build_model("timm/vit_tiny", classes=4, channels=1)(images(channels=1, size=8)).shape == (2, 4)
    with pytest.raises(UserError, match="did you mean 'vit_tiny'"):
        build_model("timm/vit_tyni", classes=4)
    with pytest.raises(UserError, match=r"too deep$"):
        build_model("timm/vit_tiny", classes=4, depth=2)
