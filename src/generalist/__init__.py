"""Generalist: robust image classifiers, trained, attacked and explained.

    import generalist

    short, names = {"training.epochs": 2}, ("digits-nt", "digits-generalist-t")
    runs = [generalist.train(name, out=f"runs/{name}", overrides=short) for name in names]
    for run in runs:
        print(generalist.evaluate(run))  # attacks the test split; the record stays in the run folder
    print(generalist.compare(runs))  # evaluated runs side by side

    model = generalist.load("runs/digits-generalist-t")  # takes images [N, C, H, W] in [0, 1], returns logits [N, K]
    test = generalist.load_dataset("digits").test
    x_adv = generalist.attacks.autoattack(model, test.images[:10] / 255, test.labels[:10], threat="linf:1/4")

The same from a shell: `generalist --help`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from generalist.version import __version__

if TYPE_CHECKING:
    from generalist import attacks
    from generalist.core.errors import RunError, UserError
    from generalist.core.threat import Threat
    from generalist.core.types import Batch, LossTerms
    from generalist.data import DATASETS, Dataset, load_dataset
    from generalist.distributed.ranks import joined_ranks
    from generalist.evaluation import Suite, SuiteResult, load_suite
    from generalist.mixing import Mix, MixPlan
    from generalist.models import MODELS, build_model, load_model, load_weights, save_model
    from generalist.objectives import OBJECTIVES
    from generalist.recipes.catalogue import load_recipe
    from generalist.recipes.schema import Recipe
    from generalist.recipes.shipped import recipe_names
    from generalist.runs.compare import compare
    from generalist.runs.dial import Dial, dial
    from generalist.runs.evaluate import evaluate
    from generalist.runs.export import export
    from generalist.runs.fit import fit
    from generalist.runs.folder import Run, load
    from generalist.runs.front import fronts
    from generalist.runs.modules import measure_modules
    from generalist.runs.report import write_report
    from generalist.runs.train import train
    from generalist.training.learner import Learner

LAYERS = (
    "version", "core", "distributed", "data", "models", "fastpass", "attacks", "objectives", "mixing", "training",
    "evaluation", "report", "recipes", "runs", "cli",
)  # fmt: skip
"""Each layer imports only from those before it; a test reads the imports."""

__all__ = [
    "DATASETS",
    "LAYERS",
    "MODELS",
    "OBJECTIVES",
    "Batch",
    "Dataset",
    "Dial",
    "Learner",
    "LossTerms",
    "Mix",
    "MixPlan",
    "Recipe",
    "Run",
    "RunError",
    "Suite",
    "SuiteResult",
    "Threat",
    "UserError",
    "__version__",
    "attacks",
    "build_model",
    "compare",
    "dial",
    "evaluate",
    "export",
    "fit",
    "fronts",
    "joined_ranks",
    "load",
    "load_dataset",
    "load_model",
    "load_recipe",
    "load_suite",
    "load_weights",
    "measure_modules",
    "recipe_names",
    "save_model",
    "train",
    "write_report",
]

_HOMES = {
    "runs.evaluate": ("evaluate",),
    "runs.export": ("export",),
    "runs.fit": ("fit",),
    "runs.folder": ("Run", "load"),
    "runs.front": ("fronts",),
    "runs.modules": ("measure_modules",),
    "recipes.catalogue": ("load_recipe",),
    "runs.compare": ("compare",),
    "runs.dial": ("Dial", "dial"),
    "core.errors": ("RunError", "UserError"),
    "core.threat": ("Threat",),
    "core.types": ("Batch", "LossTerms"),
    "data": ("DATASETS", "Dataset", "load_dataset"),
    "distributed.ranks": ("joined_ranks",),
    "evaluation": ("SuiteResult", "Suite", "load_suite"),
    "training.learner": ("Learner",),
    "mixing": ("Mix", "MixPlan"),
    "models": ("MODELS", "build_model", "load_model", "load_weights", "save_model"),
    "objectives": ("OBJECTIVES",),
    "recipes.schema": ("Recipe",),
    "recipes.shipped": ("recipe_names",),
    "runs.report": ("write_report",),
    "runs.train": ("train",),
}
"""Where the public names are. They are imported when they are first used: torch takes seconds, and the command has to
be able to stop quietly meanwhile (`__main__`)."""


def __getattr__(name: str) -> Any:
    if name == "attacks":
        return import_module("generalist.attacks")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'generalist' has no attribute {name!r}")
    return getattr(import_module(f"generalist.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
