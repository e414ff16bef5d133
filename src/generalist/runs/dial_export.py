"""A point of a dial as a run of its own: a model with a card that says what it is made of, attacked on test once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generalist.core.files import LONGEST_NAME
from generalist.core.names import MEAN, UNION
from generalist.distributed import ranks
from generalist.evaluation import MixturePoint, SuiteResult
from generalist.models import read_extra, save_model
from generalist.recipes.schema import Recipe
from generalist.report.console import Reporter
from generalist.runs.claims import new_run
from generalist.runs.dial_points import METHOD_VERSION, Bench
from generalist.runs.evaluate import evaluate_target
from generalist.runs.folder import Run
from generalist.runs.paths import GLOBAL, RunPaths
from generalist.runs.targets import Target
from generalist.training.selection import Scores
from generalist.version import __version__

ENDING = "-dial"


def export_point(
    bench: Bench, point: MixturePoint, folder: Path, *, runs: Sequence[Run], reporter: Reporter
) -> tuple[Run, SuiteResult]:
    """Write the point as a run folder, whole or not at all, and attack its model on the test split.

    All ranks call this together; the main rank writes.
    """
    recipe = exported_recipe(bench.recipe, [run.recipe for run in runs])
    model = bench.model(point.mixture)
    with new_run(folder, recipe) as run:
        ranks.run_on_main(lambda: _write(run, bench, point, model, recipe, runs))
        weights = {"path": str(RunPaths(folder).model_file().absolute()), "sha256": run.model_digest()}
        target = Target(
            title=f"{folder.name}/{GLOBAL}",
            model=model,
            split=bench.dataset.test,
            threats=bench.threats,
            cache=bench.paths.dial_folder,
            workers=recipe.data.workers,
            about={"data": recipe.data.name, "split": "test", "selected_by": recipe.select, "weights": weights},
            run=run,
        )
        batch_size = recipe.validation.batch_size
        result = evaluate_target(target, bench.suite, batch_size=batch_size, seed=bench.seed, reporter=reporter)
    return Run(folder), result


def exported_recipe(recipe: Recipe, all_recipes: Sequence[Recipe]) -> Recipe:
    """The recipe that a point's card belongs to: the source's, under another name.

    It follows no shipped method any more, so that no paper's value stands beside its figures. Where the endpoints were
    selected on the test split, so was everything made of them.
    """
    name = recipe.name.encode()[: LONGEST_NAME - len(ENDING)].decode(errors="ignore") + ENDING
    select = "test" if any(one.select == "test" for one in all_recipes) else "validation"
    return recipe.model_copy(update={"name": name, "method": None, "select": select})


def _write(run: Run, bench: Bench, point: MixturePoint, model: Any, recipe: Recipe, runs: Sequence[Run]) -> None:
    base, first = bench.endpoints[0], runs[0].summary
    made_of = _made_of(bench, point)
    scores = Scores(point.natural, point.robust).record()
    selection = {"selected_by": recipe.select, "epoch": first["epochs"], "step": first["steps"], **scores}
    card = read_extra(base.run.model_file(base.model_name))
    about = {"selection": selection, "model": GLOBAL, "run": run.identity, "data": card.get("data", {})}
    save_model(model, run.model_file(), extra={**about, "dial": made_of})
    kept: dict[str, Any] = {key: first[key] for key in ("epochs", "steps", "parameters") if key in first}
    seconds = sum(source.summary["seconds"] for source in runs) + bench.seconds
    if all("cost_in_at" in source.summary for source in runs):  # which summaries of earlier versions lack
        kept["cost_in_at"] = round(sum(source.summary["cost_in_at"] for source in runs), 3)
    run.write_summary(
        {
            "recipe": recipe.name,
            "recipe_sha256": run.identity,
            **kept,
            "seconds": round(seconds, 1),
            "selected_by": recipe.select,
            "selected": {GLOBAL: selection},
            "dial": made_of,
        }
    )


def _made_of(bench: Bench, point: MixturePoint) -> dict[str, Any]:
    """Which models with which weights, how its BatchNorm was measured, and by which figures it was chosen."""
    mixture, measured = point.mixture, bench.recalibration
    endpoints = {
        one.name: {
            "run": str(one.run.folder.absolute()),
            "run_sha256": one.run.identity,
            "model": one.model_name,
            "sha256": one.run.model_digest(one.model_name),
            "model_sha256": one.hash,
        }
        for one in bench.endpoints
        if one.name in mixture.involved
    }
    if measured is None:
        batchnorm: Any = "none in this network"
    else:
        batchnorm = "as the run keeps it" if mixture.endpoint else {"recalibrated": measured.record()}
    return {
        "mixture": str(mixture),
        "base": bench.endpoints[0].name,
        "endpoints": endpoints,
        "weights": dict(mixture.each),
        "modules": {name: dict(weights) for name, weights in mixture.modules.items()},
        "is_endpoint": point.is_endpoint,
        "batchnorm": batchnorm,
        "chosen": {
            "rule": point.chosen_by or "by hand",
            "split": "validation",
            "images": bench.images,
            "attack": bench.suite.name,
            "seed": bench.seed,
            "natural": point.natural,
            "robust": point.robust,
            MEAN: point.mean,
            UNION: point.union,
        },
        "versions": {"dial": METHOD_VERSION, "generalist": __version__},
    }
