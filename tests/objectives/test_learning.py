"""Every method, trained for a few seconds on digits, is far more robust than natural training."""

import pytest
import torch

from generalist import Threat, load_recipe, recipe_names
from generalist.evaluation import evaluate_split
from generalist.runs.experiment import build

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
            sets.append(f"learners.{name}.objective.steps=4")
        sets.append(f"learners.{name}.optimizer.lr=0.1")
    return load_recipe(f"digits-{method}", sets)


def trained(method, networks=None):
    experiment = build(short(method), networks=networks)
    state, plan = experiment.state, experiment.plan
    for batch in experiment.feed(0):
        for learner in state.learners.values():
            if plan.is_active(learner.name, state.step):
                learner.step(batch, progress=plan.progress(state.step), key=(0, learner.name, state.step))
                if plan.ends_epoch(state.step):
                    learner.end_epoch_()
        state.mix.accumulate_(state.trees, weights=plan.weights(state.step), decay=plan.decay(state.step))
        if plan.redistributes_after(state.step):
            experiment.redistribute_()
        state.step += 1
    return experiment


def robust_accuracy(experiment):
    split = experiment.dataset.validation
    found = evaluate_split(experiment.global_model(), split, threats=[THREAT], steps=10, limit=128).record()
    return found["robust"][str(THREAT)]


METHODS = sorted(name.removeprefix("digits-") for name in recipe_names() if name.startswith("digits-"))
SELDOM = ("generalist-7", "generalist-10", "trades-1", "trades-awp", "score-pgd")  # the same code once more


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("nt", *SELDOM)])
def test_far_more_robust_than_natural_training(method):
    """NT keeps under 10 % at this radius."""
    recipe, networks = short(method), {}
    if method == "hat":
        networks = {"standard": trained("nt").global_model()}
    if method == "rmc":
        networks = {"first": trained("at").global_model(), "second": trained("at-l2").global_model()}
    experiment = trained(method, networks)
    assert robust_accuracy(experiment) > 30, recipe.name
    assert all(torch.isfinite(tensor).all() for tensor in experiment.state.global_model.state_dict().values())


def test_natural_training_is_not_robust():
    assert robust_accuracy(trained("nt")) < 10
