"""An evaluation as an entry of RobustBench: the JSON form of its `model_info`."""

import shlex
import warnings
from collections.abc import Mapping
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from generalist.attacks import STANDARD
from generalist.core.errors import UserError
from generalist.core.threat import Threat
from generalist.evaluation import load_suite
from generalist.models.wide_resnet import parse_wrn
from generalist.recipes.schema import Recipe
from generalist.runs.compare import is_outdated
from generalist.runs.experiment import load_data
from generalist.runs.folder import Run

COLUMN = "AA"
SUITES = ("autoattack", "paper")
"""The shipped suites that have AutoAttack's column."""
LEADERBOARDS = {
    "cifar10": {"linf": Fraction(8, 255), "l2": Fraction(1, 2)},
    "cifar100": {"linf": Fraction(8, 255)},
    "imagenet": {"linf": Fraction(4, 255)},
}
_NAMES = {
    "resnet18": ("ResNet-18", 64),
    "resnet34": ("ResNet-34", 64),
    "resnet50": ("ResNet-50", 64),
    "wide_resnet50_2": ("WideResNet-50-2", 64),
    "preact_resnet18": ("PreActResNet-18", 64),
}
"""What RobustBench calls a network, and its usual width."""


def robustbench_entry(run: Run, name: str, threat: str | Threat | None = None) -> dict[str, Any]:
    """The entry of a model of a run under one threat; link, authors and venue are for its authors to fill in.

    Raises:
        UserError: There is no record of standard AutoAttack on the whole test split for it.
    """
    record = _record(run, name)
    ball = _threat(record, threat)
    recipe = run.recipe
    if LEADERBOARDS.get(recipe.data.name, {}).get(ball.norm) != ball.eps:
        warnings.warn(
            f"RobustBench has no leaderboard of {recipe.data.name} under {ball}; the entry has its form all the same",
            stacklevel=2,
        )
    accuracy = f"{record['accuracy'][str(ball)][COLUMN]:.2f}"
    entry = {
        "link": "",
        "name": recipe.name,
        "authors": "",
        "additional_data": recipe.data.extra is not None,
        "number_forward_passes": 1,
        "dataset": recipe.data.name,
        "venue": "",
        "architecture": architecture(recipe.model.name, recipe.model.width),
        "eps": str(ball.eps) if ball.norm == "linf" else f"{ball.radius:g}",
        "clean_acc": f"{record['natural']:.2f}",
        "reported": accuracy,
        "autoattack_acc": accuracy,
        "unreliable": bool(record["red_flags"]),
    }
    note = _footnote(recipe, record)
    return entry | ({"footnote": note} if note else {})


def _record(run: Run, name: str) -> dict[str, Any]:
    """The newest believable record of AutoAttack on the whole test split."""
    again = shlex.join(["generalist", "eval", str(run.folder), "--suite", SUITES[0]])
    suites = [suite for suite in SUITES if run.record_file(suite, name).is_file()]
    if not suites:
        raise UserError(f"{run.folder} has no AutoAttack record of its model {name!r}; make it with: {again}")
    record = run.record(suites[0], name)
    standard = {stage.label: stage.spec() for stage in load_suite(SUITES[0]).stages}
    if {label: record["stages"].get(label) for label in STANDARD} != standard:
        raise UserError(f"{run.record_file(suites[0], name)} is not of standard AutoAttack; make it with: {again}")
    if is_outdated(run, run.record_file(suites[0], name), record, name):
        raise UserError(f"{run.record_file(suites[0], name)} is of other weights; make it with: {again}")
    if run.recipe.data.limit is not None:
        limit = run.recipe.data.limit
        raise UserError(f"{run.folder} has a test split that data.limit={limit} cut; an entry is of all of it")
    images = _test_images(run)
    if record["images"] != images:
        raise UserError(
            f"{run.record_file(suites[0], name)} is of {record['images']} of the {images} test images; an entry is of"
            f" all of them: {again}"
        )
    return record


def _test_images(run: Run) -> int:
    """How many images the test split has; runs that were not trained, such as a dial's, do not say it."""
    noted = run.environment.get("images", {}).get("test")
    return int(noted) if noted is not None else len(load_data(run.recipe).test)


def _threat(record: Mapping[str, Any], given: str | Threat | None) -> Threat:
    measured = list(record["threats"])
    if given is None:
        if len(measured) > 1:
            raise UserError(
                f"an entry is of one threat, the record has {', '.join(measured)}", command=f"--threat {measured[0]}"
            )
        return Threat.parse(measured[0])
    threat = Threat.parse(given)
    if str(threat) not in measured:
        raise UserError(f"the record has no {threat}; it has {', '.join(measured)}")
    return threat


def _footnote(recipe: Recipe, record: Mapping[str, Any]) -> str:
    said = []
    if recipe.select == "test":
        said.append("The checkpoint was selected on the test set.")
    if recipe.init is not None:
        start = PurePath(recipe.init.from_).name
        said.append(f"Training started from {start}; additional_data must be true if that saw more data.")
    said += [flag["message"] for flag in record["red_flags"]]
    return " ".join(said)


def architecture(name: str, width: int | None) -> str:
    """resnet18 → ResNet-18, wrn-28-10 → WideResNet-28-10; others as they are called here."""
    wrn = parse_wrn(name)
    spelt, usual = (f"WideResNet-{wrn[0]}-{wrn[1]}", None) if wrn else _NAMES.get(name, (name, None))
    return spelt if width in (None, usual) else f"{spelt} (width {width})"
