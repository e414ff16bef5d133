"""Attacks and suites of a user's own package."""

import sys
import warnings

import pytest
import torch
from torch import nn

from generalist import Threat, UserError, load_suite
from generalist.attacks import ATTACKS
from generalist.data import ArraySplit
from generalist.evaluation import SUITES, Suite, evaluate_suite

ATTACK = """
from own_helpers import moved
from generalist import load_suite

def shift(model, x, y, *, threat, generator=None, share: float = 1.0):
    return threat.project(moved(x, share * threat.radius), x)

def none(model, x, y, *, threat, generator=None):
    return None

def wrong_shape(model, x, y, *, threat, generator=None):
    return x[:1]

def fails(model, x, y, *, threat, generator=None):
    return {}["missing"]

def mine():
    return {"attacks": ["own_attacks:shift"]}

def named():
    return load_suite({"name": "pgd20", "attacks": ["pgd"]})

def no_suite():
    return 3

def raises():
    raise ValueError("first\\nsecond")

def needs(what):
    return what
"""
STAYS, MOVES = "def moved(x, by):\n    return x\n", "def moved(x, by):\n    return x - by\n"
LINF = [Threat.parse("linf:1/2")]


class Bright(nn.Module):
    """Class 1 where the image is bright."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * torch.stack([1 - x.mean((1, 2, 3)), x.mean((1, 2, 3))], 1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_attacks.py").write_text(ATTACK)
    (tmp_path / "own_helpers.py").write_text(STAYS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget()


def forget():
    for name in ("own_attacks", "own_helpers"):
        sys.modules.pop(name, None)


def accuracy(attack, folder):
    """% right after the attack; kept verdicts that turn out wrong would warn."""
    split = ArraySplit(torch.rand(24, 1, 4, 4, generator=torch.Generator().manual_seed(0)) / 3 + 0.6,
                       torch.ones(24, dtype=torch.int64))  # fmt: skip
    suite = load_suite({"attacks": [attack]})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*kept verdicts.*")
        result = evaluate_suite(Bright(), split, suite, threats=LINF, cache=folder / "cache")
    return result.table()["linf:1/2"]["mine"], result


def verdict_files(folder):
    return sorted(path.name for path in (folder / "cache").glob("*.jsonl"))


def test_a_changed_attack_does_not_meet_its_old_verdicts(folder):
    name = "own_attacks:shift"
    assert accuracy(name, folder)[0] == 100
    first = verdict_files(folder)
    assert accuracy({"name": name, "share": 1.0}, folder)[0] == 100
    assert verdict_files(folder) == first
    assert first[0].startswith("own_attacks_shift-")
    forget()
    (folder / "own_helpers.py").write_text(MOVES)  # the attack's own file is as it was
    changed, result = accuracy(name, folder)
    assert changed == 0
    assert len(verdict_files(folder)) == 2
    assert result.record()["stages"]["shift"]["attack"] == name


def test_a_registered_attack_is_known_by_its_source_too(folder):
    sys.path.insert(0, str(folder))
    try:
        from own_attacks import shift
    finally:
        sys.path.remove(str(folder))
    ATTACKS.register("own-shift")(shift)
    try:
        specs = [load_suite({"attacks": [attack]}).stages[0].spec() for attack in ("own-shift", "own_attacks:shift")]
    finally:
        del ATTACKS._entries["own-shift"]
    assert specs[0]["source_sha256"] == specs[1]["source_sha256"]
    assert "source_sha256" not in load_suite("pgd20").stages[0].spec()


@pytest.mark.parametrize(
    ("attack", "says"),
    [("none", "returned a NoneType; it must return images"), ("wrong_shape", r"returned \[1, 1, 4, 4\]"),
     ("fails", r"raised KeyError: 'missing' \(own_attacks.py, line 15\)")],
)  # fmt: skip
def test_an_attack_that_fails_is_told_in_one_line(folder, attack, says):
    with pytest.raises(UserError, match=says) as error:
        accuracy(f"own_attacks:{attack}", folder)
    assert "\n" not in str(error.value)


def test_a_suite_of_ones_own_is_a_function(folder):
    suite = load_suite("own_attacks:mine")
    assert (suite.name, [stage.label for stage in suite.stages]) == ("mine", ["shift"])
    SUITES.register("own-suite")(lambda: {"attacks": ["cw", "own_attacks:shift"], "cascade": False})
    try:
        registered = load_suite("own-suite")
    finally:
        del SUITES._entries["own-suite"]
    assert isinstance(registered, Suite)
    assert set(registered.columns) == {"cw", "shift", "own-suite"}
    assert load_suite(registered) is registered


@pytest.mark.parametrize(
    ("name", "says"),
    [("own_attacks:named", "name of a shipped suite"), ("own_attacks:no_suite", "returned a int"),
     ("own_attacks:raises", "raised ValueError: first"), ("own_attacks:needs", "it is called with"),
     ("own_attacks:mien", "did you mean 'mine'?"), ("nowhere:mine", "no module 'nowhere'"),
     ("atuoattack", "did you mean 'autoattack'?")],
)  # fmt: skip
def test_a_mistake_in_a_suite_of_ones_own_is_one_line(folder, name, says):
    with pytest.raises(UserError, match=says) as error:
        load_suite(name)
    assert "\n" not in str(error.value)
