"""Every method, trained for a few seconds on digits, is far more robust than natural training."""

from functools import cache

import pytest
import torch

from generalist import Threat, load_recipe, recipe_names
from generalist.evaluation import evaluate_split
from generalist.runs.experiment import build
from long_tests import LONG
from run_cases import fit_quietly

pytestmark = pytest.mark.no_cover  # tracing costs a tenth, for lines that tests of a few steps run too
THREAT = Threat.parse("linf:3/20")
NATURAL = ("natural", "corrupted")


def short(method):
    """The shipped recipe, made small: fewer epochs, steps and channels, a radius that is soon learned."""
    recipe = load_recipe(f"digits-{method}")
    sets = [
        f"training.epochs={12 if method == 'lbgat' else 7}",
        "model.width=8",
        "mixing.decay=0.9",
        "mixing.every_epochs=1",
    ]
    for name, learner in recipe.learners.items():
        options = learner.objective.options
        if "threats" in options:
            second = options["threats"][1]
            sets.append(f"learners.{name}.objective.threats=[{THREAT}, '{second}']")
        elif getattr(options.get("threat"), "norm", None) == "linf":
            sets.append(f"learners.{name}.objective.threat={THREAT}")
        if "steps" in options:
            sets.append(f"learners.{name}.objective.steps=3")
        sets.append(f"learners.{name}.optimizer.lr=0.1")
    return load_recipe(f"digits-{method}", sets)


@cache
def trained(method):
    return fit_quietly(build(short(method), networks=networks_for(method)))


def networks_for(method):
    """The trained networks that the method's recipe needs."""
    needed = {"hat": {"standard": "nt"}, "rmc": {"first": "at", "second": "at-l2"}}.get(method, {})
    return {name: trained(other).global_model() for name, other in needed.items()}


def robust_accuracy(experiment):
    split = experiment.dataset.validation
    found = evaluate_split(experiment.global_model(), split, threats=[THREAT], steps=10, limit=128).record()
    return found["robust"][str(THREAT)]


METHODS = sorted(name.removeprefix("digits-") for name in recipe_names() if name.startswith("digits-"))
SELDOM = (  # the same code once more
    "generalist-d-norms", "generalist-5", "generalist-7", "generalist-10", "trades-1", "trades-awp", "score-pgd",
)  # fmt: skip


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=LONG if name in SELDOM else ()) for name in METHODS if name != "nt"]
)
def test_far_more_robust_than_natural_training(method):
    """NT keeps under 10 % at this radius."""
    experiment = trained(method)
    assert robust_accuracy(experiment) > 30
    assert all(torch.isfinite(tensor).all() for tensor in experiment.state.global_model.state_dict().values())


def test_natural_training_is_not_robust():
    assert robust_accuracy(trained("nt")) < 10
