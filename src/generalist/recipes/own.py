"""A recipe for data and networks of one's own: a shipped setting, with everything that depends on the images replaced.

`generalist init` writes such a recipe down with its reasons, `generalist.fit` trains it at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from generalist.core.errors import UserError, unknown
from generalist.core.threat import Threat
from generalist.recipes.shipped import Raw, part_names, shipped_part

NORMS_OF_TASK = {
    "linf": ("linf",), "l2": ("l2",), "l1": ("l1",), "norms": ("linf", "l2"), "extremes": ("linf", "l1"),
}  # fmt: skip
"""The norms that the task templates of a setting attack in."""
SMALL_IMAGES = 12
"""Up to this side in pixels images are taken for digits, not for pictures."""
LATE = "late"
"""The task template of a natural learner that trains the last modules."""
TUNED_LR = 0.01
"""The learning rate of weights that were trained before."""


def base_setting(size: int, *, accelerated: bool) -> str:
    """The shipped setting that optimizers, schedules and attack steps are taken from."""
    if size <= SMALL_IMAGES:
        return "digits"
    return "cifar10-resnet18" if accelerated else "cifar10-mini"


def own_recipe(
    *,
    base: str,
    method: str,
    data: Mapping[str, Any],
    model: Mapping[str, Any],
    threats: Sequence[str],
    shown: Sequence[str],
    epochs: int,
    batch_size: int,
    steps: int,
    trains: Any,
    tuned: bool,
) -> Raw:
    """The fields of a recipe that extends the setting `base`.

    Args:
        base: A shipped setting.
        method: A shipped method, unless another is asked for.
        data: The section of the images.
        model: The section of the network.
        threats: What learners are trained under, one per norm.
        shown: The threats that models are validated under.
        epochs: Epochs of training.
        batch_size: Images per batch.
        steps: Batches per epoch.
        trains: The modules that a late natural learner trains.
        tuned: Whether the network was trained before: a lower learning rate then.
    """
    by_norm: dict[str, str] = {Threat.parse(threat).norm: threat for threat in threats}
    _check_method(method, by_norm)
    templates = shipped_part("settings", base)["tasks"]
    tasks: Raw = {name: {} for name in templates}
    for task, norms in NORMS_OF_TASK.items():
        if task in tasks and all(norm in by_norm for norm in norms):
            radii = [by_norm[norm] for norm in norms]
            objective = {"threat": radii[0]} if len(radii) == 1 else {"threats": radii}
            # a step size of the setting goes with its radius
            step = {"step_size": None} if "step_size" in templates[task]["objective"] else {}
            tasks[task] = {"objective": {**objective, **step}}
    tasks[LATE] = {"trains": trains}
    if tuned:
        tasks = {name: {**task, "optimizer": {"lr": TUNED_LR}} for name, task in tasks.items()}
    return {
        "extends": base,
        "method": method,
        "data": dict(data),
        "model": dict(model),
        "training": {"epochs": epochs, "batch_size": batch_size},
        "tasks": {name: task for name, task in tasks.items() if task},
        "mixing": {"decay": lookback_decay(steps)},
        "validation": {"threats": list(shown), "every_epochs": max(1, epochs // 10)},
    }


def lookback_decay(steps: int) -> float:
    """The decay of a running average that looks back 2.6 epochs, as 0.999 does over CIFAR-10's 390 steps."""
    return round(min(max(1 - 1 / (2.6 * steps), 0.9), 0.999), 4)


def _check_method(method: str, by_norm: Mapping[str, str]) -> None:
    """Every norm that the method trains in must have its radius."""
    if method not in part_names("methods"):
        raise unknown("method", method, part_names("methods"))
    learners = shipped_part("methods", method)["learners"]
    tasks = {(learner or {}).get("task", name) for name, learner in learners.items()}
    needed = sorted({norm for task in tasks for norm in NORMS_OF_TASK.get(task, ())})
    missing = [norm for norm in needed if norm not in by_norm]
    if missing:
        given = ", ".join(by_norm.values()) or "none"
        raise UserError(
            f"method {method!r} trains in {' and '.join(needed)}, but threats has {given}; add {missing[0]}:EPS,"
            " or choose another method"
        )
