"""The shipped recipes: complete, composed, and with the settings that the papers print."""

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import generalist
from generalist.core.schedules import SCHEDULES
from generalist.recipes import catalogue
from generalist.recipes.cost import cost_in_at
from generalist.recipes.schema import LearnerSection, Recipe, parse_recipe
from generalist.recipes.shipped import recipe_names
from generalist.runs.experiment import build_plan

SETTINGS = (
    "digits", "mnist", "fashion-mnist", "svhn-resnet18", "cifar10-resnet18", "cifar10-wrn32-10", "cifar100-resnet18",
    "cifar100-wrn32-10", "imagenet-resnet50", "imagenet-wrn50-2", "cifar10-unified", "mnist-resnet18",
)  # fmt: skip
METHODS = (
    "nt", "at", "at-l2", "half", "trades", "trades-1", "trades-awp", "fat", "iat", "rst", "score", "score-pgd", "agr",
    "part", "fast-at", "mart", "at-awp", "hat", "lbgat", "avg", "max", "msd", "e-at", "ramp", "rmc",
    "generalist-d-natural", "generalist-d-norms", "generalist-t", "generalist-d-trades", "generalist-t-mart",
    "generalist-5", "generalist-7", "generalist-10",
)  # fmt: skip
CODE = ("generalist-d-natural-code", "generalist-d-norms-code", "generalist-t-code")
CIFAR = ("cifar10-resnet18", "cifar10-wrn32-10", "cifar100-resnet18", "cifar100-wrn32-10")
IMAGENET = ("imagenet-resnet50", "imagenet-wrn50-2")
STEPS = 391
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, far faster
pytestmark = pytest.mark.no_cover  # hundreds of recipes run the same lines, and tracing doubles their time


@cache
def load_recipe(name: str) -> Recipe:
    """Each of them is asked for by several tests."""
    return catalogue.load_recipe(name)


def learners(name: str) -> dict[str, LearnerSection]:
    return load_recipe(name).learners


def rate(section: LearnerSection, progress: Fraction) -> float:
    factor = SCHEDULES.get(section.schedule.name)(progress, **section.schedule.options)
    return float(section.optimizer.options["lr"] * factor)


def shipped(kind: str) -> set[str]:
    return {path.stem for path in (Path(generalist.__file__).parent / "recipes" / kind).glob("*.yaml")}


def test_every_method_exists_in_every_setting() -> None:
    """Each of those that the papers compare, and each that has a file; the published code is of one setting."""
    settings, methods = shipped("settings"), shipped("methods")
    assert set(SETTINGS) <= settings
    assert {*METHODS, *CODE} <= methods
    wanted = {f"{setting}-{method}" for setting in settings for method in methods - set(CODE)}
    wanted |= {f"cifar10-resnet18-{method}" for method in CODE}
    assert set(recipe_names()) == wanted


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_method_trains_the_same_learners_in_every_setting(setting: str) -> None:
    for method in METHODS:
        ours, theirs = learners(f"{setting}-{method}"), learners(f"cifar10-resnet18-{method}")
        assert list(ours) == list(theirs), method
        assert [row.objective.name for row in ours.values()] == [row.objective.name for row in theirs.values()], method
        needs = load_recipe(f"{setting}-{method}").needs.values()
        assert all(need.startswith(f"{setting}-") for need in needs), method


@pytest.mark.parametrize("name", recipe_names())
def test_it_survives_being_written_and_its_weights_sum_to_one(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description == recipe_names()[name]
    assert parse_recipe(yaml.load(recipe.to_yaml(), LOADER)) == recipe
    plan = build_plan(recipe, STEPS)
    for step in [*range(0, plan.steps, 997), plan.steps - 1]:
        weights = plan.weights(step)
        assert sum(weights.values()) == pytest.approx(1, abs=1e-9)
        assert min(weights.values()) >= 0


def test_no_two_recipes_are_the_same() -> None:
    def essence(name: str) -> str:
        plain = load_recipe(name).plain()
        return repr({key: value for key, value in plain.items() if key not in ("name", "description")})

    # the unified setting differs only where a method's authors train otherwise
    essences = [essence(name) for name in recipe_names() if not name.startswith("cifar10-unified")]
    assert len(set(essences)) == len(essences)


@pytest.mark.parametrize(
    ("name", "robust_lr", "robust_decay"),
    [
        ("cifar10-resnet18", 0.01, 3.5e-3),
        ("cifar100-resnet18", 0.01, 3.5e-3),
        ("svhn-resnet18", 0.01, 3.5e-3),
        ("cifar10-wrn32-10", 0.1, 7e-4),
        ("cifar100-wrn32-10", 0.1, 7e-4),
    ],
)
def test_rates_and_decays_of_the_paper(name: str, robust_lr: float, robust_decay: float) -> None:
    found = {
        task: [section.optimizer.options[field] for field in ("lr", "weight_decay", "momentum")]
        for task, section in learners(f"{name}-generalist-t").items()
    }
    robust = [robust_lr, robust_decay, 0.9]
    assert found == {"linf": robust, "natural": [0.1, 5e-4, 0.9], "l2": robust}


@pytest.mark.parametrize("setting", CIFAR)
def test_cifar_threats_and_length(setting: str) -> None:
    recipe = load_recipe(f"{setting}-generalist-t")
    assert recipe.training.epochs == 120
    assert recipe.training.batch_size == 128
    attacks = {name: recipe.learners[name].objective.plain() for name in ("linf", "l2")}
    assert {name: attack["threat"] for name, attack in attacks.items()} == {"linf": "linf:8/255", "l2": "l2:128/255"}
    assert {attack["steps"] for attack in attacks.values()} == {10}
    assert [str(threat) for threat in recipe.validation.threats] == ["linf:8/255", "l2:128/255"]
    assert recipe.validation.steps == 20
    assert round(recipe.mixing.start * recipe.training.epochs) == 75


@pytest.mark.parametrize("setting", IMAGENET)
def test_imagenet_settings(setting: str) -> None:
    recipe = load_recipe(f"{setting}-generalist-t")
    assert recipe.training.epochs == 240
    decays = {name: section.optimizer.options["weight_decay"] for name, section in recipe.learners.items()}
    assert decays == {"linf": 1e-4, "natural": 2e-4, "l2": 1e-4}
    attacks = {name: recipe.learners[name].objective.plain() for name in ("linf", "l2")}
    assert {name: attack["threat"] for name, attack in attacks.items()} == {"linf": "linf:4/255", "l2": "l2:64/255"}
    assert {attack["steps"] for attack in attacks.values()} == {3}
    robust = 0.1 if "wrn" in setting else 0.01
    rates = {name: section.optimizer.options["lr"] for name, section in recipe.learners.items()}
    assert rates == {"linf": robust, "natural": 0.1, "l2": robust}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_attack_steps_a_quarter_of_its_radius(setting: str) -> None:
    for name in ("linf", "l2"):
        options: dict[str, Any] = learners(f"{setting}-generalist-t")[name].objective.options
        assert (options["step_size"] or options["threat"].eps / 4) == options["threat"].eps / 4


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting != "digits"])
def test_rates_fall_from_a_third_tenfold_by_the_middle_and_hundredfold_by_the_end(setting: str) -> None:
    for section in learners(f"{setting}-generalist-t").values():
        first = rate(section, Fraction(0))
        assert rate(section, Fraction(1, 3)) == first
        assert rate(section, Fraction(5, 12)) == pytest.approx(0.55 * first)
        assert rate(section, Fraction(1, 2)) == pytest.approx(first / 10)
        assert rate(section, Fraction(1)) == pytest.approx(first / 100)


def test_half_is_at_with_half_of_the_clean_loss() -> None:
    at, half = learners("cifar10-resnet18-at")["linf"], learners("cifar10-resnet18-half")["linf"]
    assert (at.objective.options["beta"], half.objective.options["beta"]) == (1, 0.5)
    assert at.optimizer == half.optimizer


@pytest.mark.parametrize("method", CODE)
def test_the_code_family_does_what_the_published_code_does(method: str) -> None:
    recipe = load_recipe(f"cifar10-resnet18-{method}")
    mixing = recipe.mixing
    assert (mixing.redistribute, mixing.momentum, mixing.averages) == ("every_step", "keep", "keep")
    assert mixing.train_idle
    plan = build_plan(recipe, STEPS)
    assert plan.weights_at(Fraction(2, 3))["linf"] == 1
    assert plan.weights_at(Fraction(1))["linf"] == pytest.approx(0.4)
    assert set(recipe.learners) == set(learners(f"cifar10-resnet18-{method.removesuffix('-code')}"))
    for section in recipe.learners.values():
        assert section.weight_averaging
        assert section.optimizer.options["lr"] == 0.01
        assert rate(section, Fraction(2, 3)) == pytest.approx(0.001)


def test_natural_and_l2_are_idle_for_the_first_80_of_120_epochs() -> None:
    plan = build_plan(load_recipe("cifar10-resnet18-generalist-t"), STEPS)
    assert {name: plan.active_epochs(name) for name in ("linf", "natural", "l2")} == {
        "linf": 120,
        "natural": 40,
        "l2": 40,
    }
    for name in ("natural", "l2"):
        assert not plan.is_active(name, 80 * STEPS - 1)
        assert plan.is_active(name, 80 * STEPS)


@pytest.mark.parametrize(
    ("method", "cost"),
    [("at", 1.0), ("generalist-t", 1.37), ("generalist-d-norms", 1.33), ("generalist-d-natural", 1.03)],
)
def test_cost_in_at_runs(method: str, cost: float) -> None:
    recipe = load_recipe(f"cifar10-resnet18-{method}")
    assert cost_in_at(recipe, build_plan(recipe, STEPS)) == pytest.approx(cost, abs=0.007)
