"""The standard cascade: image by image against its authors' own code, and never above any of its parts."""

import contextlib
import io
import sys
from functools import partial
from inspect import signature

import pytest
import torch

from generalist import Threat
from generalist.attacks import STANDARD, autoattack, misclassified, stage_streams
from long_tests import LONG
from oracles import natural_digits, robust_digits

CASES = [Threat.parse("linf:3/20"), Threat.parse("l2:3/4")]  # the radii the models were trained at


FULL = {
    "APGD_ce": {"steps": 100, "restarts": 1},
    "APGD_t": {"steps": 100, "restarts": 1, "targets": 9},
    "FAB_t": {"steps": 100, "restarts": 1, "targets": 9},
    "Square": {"queries": 5000, "restarts": 1},
}
SHORT = {"APGD_ce": {"steps": 100}, "APGD_t": {"steps": 30}, "FAB_t": {"steps": 25}, "Square": {"queries": 300}}
ATTRIBUTES = {"APGD_ce": "apgd", "APGD_t": "apgd_targeted", "FAB_t": "fab", "Square": "square"}  # where theirs has them
FIELDS = {"steps": "n_iter", "restarts": "n_restarts", "targets": "n_target_classes", "queries": "n_queries"}


def authors(model, threat):
    """The authors' standard version."""
    package = pytest.importorskip("pyautoattack")
    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    attack = package.AutoAttack(model, norm=norm, eps=threat.radius, version="standard", device="cpu", seed=0)
    attack.verbose = False
    return attack


def theirs(model, x, y, threat, budgets):
    """Whether each image survives the authors' standard version with these budgets."""
    with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng():
        attack = authors(model, threat)
        for label, budget in budgets.items():
            for field, value in budget.items():
                setattr(getattr(attack, ATTRIBUTES[label]), FIELDS[field], value)
        tracer = sys.gettrace()
        x_adv = attack.run_standard_evaluation(x, y, batch_size=len(x))[0]
        sys.settrace(tracer)  # it leaves none behind, and line coverage is one
    return ~misclassified(model, x_adv, y)


@pytest.mark.parametrize("threat", CASES, ids=str)
def test_the_budgets_are_the_authors_own(threat):
    attack = authors(robust_digits(threat.norm).model, threat)
    assert list(STANDARD) == list(FULL)
    for label, (_, ours) in STANDARD.items():
        usual = {field: signature(ours).parameters[field].default for field in FULL[label]}
        assert usual == FULL[label]
        assert usual == {field: getattr(getattr(attack, ATTRIBUTES[label]), FIELDS[field]) for field in usual}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("images", "budgets"), [(100, SHORT), pytest.param(500, FULL, marks=LONG)], ids=["short", "full"]
)
@pytest.mark.parametrize("threat", CASES, ids=str)
def test_verdicts_agree_with_the_authors_own(threat, images, budgets, monkeypatch):
    for label, (name, attack) in STANDARD.items():
        monkeypatch.setitem(STANDARD, label, (name, partial(attack, **budgets[label])))
    model, x, y = robust_digits(threat.norm).first(images)
    x_adv = autoattack(model, x, y, threat=threat)
    ours = ~misclassified(model, x_adv, y)
    reference = theirs(model, x, y, threat, budgets)
    assert 0.2 < reference.float().mean() < 0.8, "too easy to tell two attacks apart"
    assert (ours == reference).float().mean() >= 0.99
    assert 100 * (ours.float().mean() - reference.float().mean()) <= 0.5
    assert (threat.size(x_adv - x) <= threat.radius * (1 + 1e-5)).all()


@pytest.mark.parametrize("threat", CASES, ids=str)
def test_never_above_any_of_its_parts_and_reproducible(threat, monkeypatch):
    budgets = {"Square": {"queries": 100}, "FAB_t": {"steps": 10}, "APGD_t": {"steps": 10}, "APGD_ce": {"steps": 20}}
    for label, (name, attack) in STANDARD.items():
        monkeypatch.setitem(STANDARD, label, (name, partial(attack, **budgets[label])))
    model, x, y = robust_digits(threat.norm).first(60)
    survives = ~misclassified(model, autoattack(model, x, y, threat=threat), y)
    assert torch.equal(survives, ~misclassified(model, autoattack(model, x, y, threat=threat), y))
    for label, (_, attack) in STANDARD.items():
        alone = attack(model, x, y, threat=threat, generator=stage_streams(0, label, threat, x))
        assert not (survives & misclassified(model, alone, y)).any(), label


def test_a_model_that_is_not_robust_falls_and_an_image_that_is_wrong_comes_back_as_it_was():
    model, x, y = natural_digits().first(64)
    wrong = misclassified(model, x, y)
    y = y.clone()
    y[0] = (y[0] + 1) % 10
    x_adv = autoattack(model, x, y, threat=CASES[0])
    assert torch.equal(x_adv[0], x[0])
    assert (~misclassified(model, x_adv, y)).float().mean() < 0.05
    assert wrong.float().mean() < 0.1
