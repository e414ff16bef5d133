"""Every attack gives the same verdicts through plain passes as through faster ones (`fastpass.switched_off`)."""

from functools import partial

import pytest
import torch

from generalist import fastpass
from generalist.attacks import ATTACKS, STANDARD, autoattack, misclassified
from oracles import robust_digits

THREATS = {"linf": "linf:3/20", "l2": "l2:3/4"}
BUDGETS = {"square": {"queries": 150}, "apgd-t": {"steps": 10}, "fab-t": {"steps": 10}}


def verdicts(attack, norm, images):
    """With the faster passes, and without."""
    model, x, y = robust_digits(norm).first(images)
    fast = misclassified(model, attack(model, x, y, threat=THREATS[norm]), y)
    with fastpass.switched_off():
        plain = misclassified(model, attack(model, x, y, threat=THREATS[norm]), y)
    assert fast.any()
    assert not fast.all()
    return fast, plain


@pytest.mark.parametrize("norm", THREATS)
@pytest.mark.parametrize("name", ATTACKS.names())
def test_every_attack(name, norm):
    attack = partial(ATTACKS.get(name), **BUDGETS.get(name, {"steps": 15}))
    assert torch.equal(*verdicts(attack, norm, images=48))


@pytest.mark.parametrize("norm", THREATS)
def test_autoattack(norm, monkeypatch):
    for label, (name, attack) in STANDARD.items():
        monkeypatch.setitem(STANDARD, label, (name, partial(attack, **BUDGETS.get(name, {"steps": 15}))))
    assert torch.equal(*verdicts(autoattack, norm, images=100))
