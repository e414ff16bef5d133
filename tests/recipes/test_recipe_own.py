"""Parts of a recipe that are a user's own code."""

import sys

import pytest

from generalist import UserError, load_recipe
from generalist.recipes.schema import parse_recipe

SOURCE = """
import torch
from generalist import LossTerms, Threat

def loss(model, x, y, *, context, threat: Threat, steps: int = 1, weight: float = 2.0):
    return lambda: LossTerms(weight * torch.nn.functional.cross_entropy(model(x), y))

def plain(model, x, y, *, context):
    return lambda: LossTerms(torch.nn.functional.cross_entropy(model(x), y))

def optimizer(parameters, *, lr: float = 0.1, momentum: float = 0.5):
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)

def without_rate(parameters, *, momentum: float = 0.5):
    return torch.optim.SGD(parameters, lr=0.1, momentum=momentum)

def schedule(progress, *, end: float = 0.0):
    return 1.0

def network(*, classes):
    return torch.nn.Linear(1, classes)

other_network = network
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_parts", None)


def learner(*changes):
    return load_recipe("digits-at", [f"learners.linf.{change}" for change in changes]).learners["linf"]


def test_an_objective_of_ones_own_keeps_the_attack_it_replaces():
    objective = learner("objective.name=own_parts:loss", "objective.weight=3").objective
    assert objective.plain() == {"name": "own_parts:loss", "threat": "linf:3/20", "steps": 10, "weight": 3.0}
    assert learner("objective.name=own_parts:plain").objective.plain() == {"name": "own_parts:plain"}


def test_the_written_recipe_keeps_the_name():
    recipe = load_recipe("digits-at", ["learners.linf.objective.name=own_parts:loss"])
    assert parse_recipe(recipe.plain()) == recipe


def test_optimizer_and_schedule_of_ones_own():
    found = learner("optimizer.name=own_parts:optimizer", "schedule.name=own_parts:schedule")
    assert found.optimizer.options == {"lr": 0.1, "momentum": 0.5}
    assert found.schedule.options == {"end": 0.0}


def test_a_model_of_ones_own_replaced_by_another_is_not_taken_for_an_objective(folder):
    (folder / "mine.yaml").write_text("extends: digits-at\nmodel: {name: own_parts:network}\n")
    assert load_recipe("mine.yaml", ["model.name=own_parts:other_network"]).model.name == "own_parts:other_network"


@pytest.mark.parametrize(
    ("change", "says"),
    [("objective.name=own_parts:lsos", "did you mean 'loss'?"), ("objective.name=nowhere:loss", "no module 'nowhere'"),
     ("objective.name=own_parts:optimizer", r"it is called with \(model, x, y, \*, context\)"),
     ("objective={name: own_parts:loss, wieght: 3}", "did you mean 'weight'?"),
     ("objective={name: own_parts:loss, threat: 3}", "threat"),
     ("objective.name=torch.nn:Linear", "made with keyword-only fields"),
     ("optimizer.name=own_parts:without_rate", r"called with \(parameters, \*, lr\)"),
     ("optimizer.name=torch.optim:SGD", r"called with \(parameters, \*, lr\)"),
     ("schedule.name=own_parts:loss", r"called with \(progress\)")],
)  # fmt: skip
def test_a_mistake_is_one_line(change, says):
    with pytest.raises(UserError, match=says) as error:
        learner(change)
    assert "\n" not in str(error.value)
