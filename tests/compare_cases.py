"""Runs that were never trained, as plain values and as folders."""

import json
from pathlib import Path
from typing import Any

from generalist.core.files import sealed
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.schema import Recipe
from generalist.recipes.shipped import recipe_names, split_name
from generalist.report.comparison import Entry

SUITE_COLUMNS = {
    "pgd20": ["PGD20"],
    "quick": ["quick"],
    "autoattack": ["AA"],
    "paper": ["PGD20", "PGD100", "MIM", "CW", "APGD_ce", "APGD_dlr", "APGD_t", "FAB_t", "Square", "AA"],
}
NORMS = ("linf:8/255", "l2:128/255")


def record(
    natural: float, *robust: float, suite: str = "autoattack", threats: tuple[str, ...] = NORMS, images: int = 100
) -> dict[str, Any]:
    """An evaluation with the same figure under every attack of a threat: the first ones survive."""
    columns = SUITE_COLUMNS.get(suite, [suite])
    accuracy = {threat: dict.fromkeys(columns, value) for threat, value in zip(threats, robust, strict=True)}
    if len(threats) > 1:
        accuracy["mean over norms"] = dict.fromkeys(columns, round(sum(robust) / len(robust), 2))
        accuracy["true union"] = dict.fromkeys(columns, min(robust))
    survives = {threat: first(value, images) for threat, value in zip(threats, robust, strict=True)}
    return {
        "suite": suite, "stages": {column: {} for column in columns}, "seed": 0, "model_sha256": "0", "images": images,
        "columns": {column: [column] for column in columns}, "natural": natural, "accuracy": accuracy,
        "examples": [f"{index}-0" for index in range(images)],
        "per_image": {
            "natural": first(natural, images),
            **{threat: dict.fromkeys(columns, row) for threat, row in survives.items()},
        },
    }  # fmt: skip


def first(percent: float, images: int) -> list[int]:
    return [int(100 * index < percent * images) for index in range(images)]


def entry(
    recipe: str, *figures: float, network: str | None = "resnet18", data: str = "cifar10", **changed: Any
) -> Entry:
    of_record = {key: changed.pop(key) for key in ("suite", "threats") if key in changed}
    plain: dict[str, Any] = {
        "name": recipe, "recipe": recipe, "run": f"runs/{recipe}", "data": data,
        "method": split_name(recipe)[1] if recipe in recipe_names() else None,
        "network": network, "selected_by": "validation", "seconds": 60.0, "record": record(*figures, **of_record),
    }  # fmt: skip
    return Entry(**(plain | changed))


def write_run(
    folder: Path,
    recipe: str | Recipe,
    *records: dict[str, Any],
    seconds: float | None = 60.0,
    select: str = "validation",
) -> Path:
    """A run folder with the records of its global model."""
    if isinstance(recipe, str):
        recipe = load_recipe(recipe, [f"select={select}"])
    (folder / "evaluations").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    if seconds is not None:
        summary = {"seconds": seconds, "selected_by": recipe.select, "selected": {}}
        (folder / "summary.json").write_text(json.dumps(sealed(summary)))
    about = {"data": recipe.data.name, "split": "test", "selected_by": recipe.select}
    for one in records:
        (folder / "evaluations" / f"global-{one['suite']}.json").write_text(json.dumps(sealed(one | about)))
    return folder
