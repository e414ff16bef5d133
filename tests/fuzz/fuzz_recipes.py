"""Recipes and suites with something wrong in them: read, planned, and some of them shown by the command line."""

import functools
import random
from pathlib import Path
from typing import Any

import yaml
from fuzz_guard import Failure, calm, command
from fuzz_mutations import broken_text, broken_tree, swapped_tree
from torch import nn

from generalist.attacks import ATTACKS
from generalist.core.errors import RunError, UserError
from generalist.core.yaml_text import parse_yaml
from generalist.evaluation import load_suite
from generalist.mixing import parts_of
from generalist.models import build_model
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.cost import cost_in_at
from generalist.recipes.schema import parse_recipe
from generalist.runs.experiment import build_plan, trained_tensors
from generalist.training.placement import phases

NAMES = (
    "digits-nt", "digits-at", "digits-generalist-t", "digits-generalist-10", "digits-trades", "digits-ramp",
    "digits-rmc", "digits-fat", "digits-lbgat", "digits-e-at", "digits-fast-at", "digits-part",
    "cifar10-resnet18-generalist-t-code", "imagenet-resnet50-generalist-d-norms", "digits-generalist-late-d",
)  # fmt: skip
OWN: tuple[Any, ...] = (
    {"extends": "digits-generalist-t", "name": "mine", "training": {"epochs": 3}, "learners": {"linf": {"gamma": 0.5}}},
    {"extends": "digits-at", "learners": {"linf": {"task": "l2", "objective": {"threat": {"times": "1/2"}}}}},
    {"extends": "digits-nt", "learners": {"natural": {"schedule": {"name": "cosine", "warmup": 0.1}}}, "seed": 3},
    {"extends": "digits-at", "data": {"extra": {"file": "x.npz", "share": 0.5}}, "needs": {"labels": "digits-nt"}},
    {"extends": "digits-at", "data": {"name": "folder", "root": "x", "size": 64}, "init": {"from": "x", "epoch": 1}},
    {"extends": "digits-generalist-late-d", "init": {"from": "x"}, "learners": {"natural": {"trains": {"last": 0.5}}}},
    {"extends": "digits-generalist-t", "learners": {
        "linf": {"gamma": "rest", "ends": "3/4"}, "l2": {"trains": ["conv4", "bn*", "fc"], "starts": "1/2",
        "gamma": {"depth": [0, "1/2", 1], "at": ["1/2", 1], "values": [0, 0.5]}},
        "natural": {"trains": "fc", "gamma": {"modules": {"fc.weight": 0.2, "*": {"share": 0.1}}}}}},
)  # fmt: skip
SUITES: tuple[Any, ...] = (
    {"name": "mine", "cascade": True, "attacks": ["square", {"attack": "pgd", "steps": 5, "label": "P"}]},
    {"attacks": [{"attack": "apgd-t", "steps": 10, "targets": 3}, {"attack": "fab-t", "restarts": 2}, "cw", "mim"]},
)  # fmt: skip
EXPECTED = (UserError, RunError)


@functools.cache
def _bases() -> list[Any]:
    return [*OWN, *OWN, *(load_recipe(name).plain() for name in NAMES)]


def _broken(tree: Any, random: random.Random) -> bytes:
    kind = random.random()
    if kind < 0.3:
        return broken_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), random)
    changed = swapped_tree(tree, random) if kind < 0.5 else broken_tree(tree, random)
    try:
        text = yaml.dump(changed, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=random.random() < 0.5)
    except yaml.YAMLError:  # a key of two parts
        text = yaml.dump(changed, sort_keys=False)
    return text.encode(errors="surrogatepass")


def recipe_case(random: random.Random, folder: Path) -> str:
    """Read, written out and read again, planned; one in twenty through `recipes show` and `train --dry-run`."""
    file = folder / "case.yaml"
    file.write_bytes(_broken(random.choice(_bases()), random))
    if random.random() < 0.05:
        shown = command(["recipes", "show", str(file)])
        planned = command(["train", str(file), "--dry-run"])
        return f"recipe through the command line: {'planned' if not (shown.code or planned.code) else 'refused'}"
    return f"recipe: {calm(lambda: _planned(file))}"


@functools.cache
def _network() -> nn.Module:
    """Of any kind that has modules of the names that recipes give."""
    return build_model("small_cnn", classes=10, channels=1, size=8, width=2)


def _planned(file: Path) -> str:
    try:
        recipe = load_recipe(file)
    except EXPECTED as error:
        _short(error)
        return "refused"
    again = parse_recipe(parse_yaml(recipe.to_yaml(), "again"))
    if again != recipe:
        raise Failure(f"not the same after writing and reading: {recipe.to_yaml()}")
    try:
        trained = {name: trained_tensors(name, section, _network()) for name, section in recipe.learners.items()}
        gammas = {name: section.gamma for name, section in recipe.learners.items()}
        plan = build_plan(recipe, 19, parts_of(_network(), gammas, trained))
    except EXPECTED as error:
        _short(error)
        return "refused by its plan"
    for name in recipe.learners:
        plan.active_epochs(name)
    phases(plan, dict.fromkeys(recipe.learners, 1.0), ranks=5, batch_size=recipe.training.batch_size)
    if all(section.objective.options.get("steps", 1) < 100 for section in recipe.learners.values()):
        cost_in_at(recipe, plan)
    return "planned"


SHORT = (
    "training.epochs=2", "training.batch_size=20", "data.limit=40", "model.width=2", "mixing.recalibrate_batches=1",
    "validation.images=8", "validation.steps=1", "training.checkpoint_epochs=1", "data.workers=0",
)  # fmt: skip


def training_case(random: random.Random, folder: Path) -> str:
    """A recipe that may well be valid, trained for two steps."""
    tree = load_recipe(
        random.choice([name for name in NAMES if name.startswith("digits") and name != "digits-rmc"])
    ).plain()
    for learner in tree["learners"].values():
        if "steps" in learner["objective"]:
            learner["objective"]["steps"] = 2
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump(swapped_tree(tree, random), sort_keys=False), encoding="utf-8")
    changes = [part for change in SHORT for part in ("--set", change)]
    outcome = command(["train", str(file), *changes, "--out", "run", "--quiet"])
    return f"training: exit code {outcome.code}"


def attack_case(random: random.Random, folder: Path, *, run: Path) -> str:
    """A suite that may well be valid, of short attacks, run on a few images."""
    short = {"steps": 3, "restarts": 1, "queries": 20, "targets": 2}
    names = random.sample(ATTACKS.names(), 2)
    fields = {name: ATTACKS.schema(name).model_fields for name in names}
    options = {name: ATTACKS.check(name, {k: v for k, v in short.items() if k in fields[name]}) for name in names}
    plain = {name: {k: _plain(v) for k, v in options[name].items() if v is not None} for name in names}
    tree: Any = {"attacks": [{"attack": name, **plain[name]} for name in names]}
    tree = swapped_tree(tree, random) if random.random() < 0.6 else tree
    if any(
        isinstance(v, int) and v > 50 for entry in tree["attacks"] if isinstance(entry, dict) for v in entry.values()
    ):
        return "attack: left out, too long"
    file = folder / "suite.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    threat = random.choice(["linf:1/4", "l2:1/2", "l1:2", "linf:1e12", "l2:1e-12", "l1:1e-12", "l2:1e12", "l1:1e12"])
    given = ["eval", str(run), "--global", "--suite", str(file), "--n", "6", "--threat", threat, "--json"]
    return f"attack: exit code {command(given).code}"


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def suite_case(random: random.Random, folder: Path) -> str:
    file = folder / "suite.yaml"
    file.write_bytes(_broken(random.choice(SUITES), random))

    def read() -> str:
        try:
            suite = load_suite(file)
        except EXPECTED as error:
            _short(error)
            return "refused"
        if Path(suite.name).name != suite.name:
            raise Failure(f"a suite that would be written elsewhere: {suite.name!r}")
        return "read"

    return f"suite: {calm(read)}"


def _short(error: Exception) -> None:
    if len(str(error)) > 2000:
        raise Failure(f"a message of {len(str(error))} characters: {str(error)[:500]}")
