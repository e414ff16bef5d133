"""A run folder that can be read: recipe, metrics, models and records, all checked."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from generalist.core.errors import UserError
from generalist.core.files import (
    digest,
    fingerprint,
    read_json,
    read_text,
    remove_leftovers,
    seal_holds,
    sealed,
    write_json,
)
from generalist.core.names import ANALYSES, CURVE, OOD
from generalist.core.yaml_text import parse_yaml
from generalist.evaluation import SuiteResult, read_curve, read_ood, read_record
from generalist.models import is_given, load_model, read_extra, read_spec, remember_as
from generalist.recipes.differences import decisive
from generalist.recipes.schema import Recipe, parse_recipe
from generalist.runs.paths import GLOBAL, RunPaths
from generalist.training.journal import read_journal

_READERS = {CURVE: read_curve, OOD: read_ood}
RECIPE_DIGEST = "# digest: "
"""How the first line of a run's recipe.yaml begins."""


@lru_cache(maxsize=1024)
def _parsed(path: Path, text: str) -> dict[str, Any]:
    """A recipe file; YAML is slow, and a run's recipe is asked for many times."""
    raw = parse_yaml(text, str(path))
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping of recipe fields, got {type(raw).__name__}")
    return raw


class Run(RunPaths):
    """A run folder that can be read: its recipe, metrics, summary, models and evaluation records.

    Args:
        folder: A folder that `generalist.train` wrote.

    What is read back is checked by its digest. A file that was changed, damaged or taken from another run is refused
    by name.

    Example:
        >>> import generalist
        >>> overrides = {"training.epochs": 1, "data.limit": 100, "model.width": 2}
        >>> run = generalist.train("digits-nt", out=tmp / "nt", overrides=overrides)
        >>> run.models
        ['global', 'natural']
        >>> run.summary["epochs"]
        1
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        if not self.exists:
            raise UserError(f"{self.folder} is not a run folder: it has no {self.recipe_file.name}")

    @property
    def recipe(self) -> Recipe:
        """The recipe that the run was trained by. Images that it keeps itself are found wherever it was moved to."""
        recipe = parse_recipe(self.written_recipe)
        if not self.given_data.is_file():
            return recipe
        return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": str(self.given_data)})})

    @property
    def written_recipe(self) -> dict[str, Any]:
        """The recipe as its file has it, if the fields that decide results are as they were written."""
        text = read_text(self.recipe_file)
        raw = deepcopy(_parsed(self.recipe_file, text))
        first, _, _ = text.partition("\n")
        marked = first.startswith(RECIPE_DIGEST)
        if marked and first.removeprefix(RECIPE_DIGEST).strip() != fingerprint(decisive(raw)):
            raise UserError(f"{self.recipe_file} was changed since the run was made (its digest differs); restore it")
        return raw

    @property
    def identity(self) -> str:
        """What its checkpoints and models are marked with: the digest of the recipe."""
        return fingerprint(decisive(self.written_recipe))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What the run noted of itself: one mapping per epoch and per validation."""
        return read_journal(self.metrics_file, run=self.identity)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One flat row per epoch, fit for `pandas.DataFrame(run.history)`: losses, γ, learning rates, accuracy."""
        return history_rows(self.metrics)

    @property
    def finished(self) -> bool:
        """Whether there is a summary that can be read; a damaged one is named."""
        if not self.summary_file.is_file():
            return False
        try:
            _ = self.summary
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
            return False
        return True

    @property
    def summary(self) -> dict[str, Any]:
        """Epochs, seconds, parameters, and which state of each model was selected by what."""
        path = self.summary_file
        again = "resume the run to make it anew"
        hint = f"generalist train … --out {self.folder} --resume"
        if not path.is_file():
            raise UserError(f"{self.folder} is not finished; resume it", command=hint)
        summary = read_json(path)
        # the recipe's digest is in no summary that was written without one of its own
        intact = seal_holds(summary) if "recipe_sha256" in summary else seal_holds(summary) is not False
        if not intact or not isinstance(summary.get("selected"), dict):
            raise UserError(f"{path} was changed since it was written; {again}", command=hint)
        if summary.get("recipe_sha256", self.identity) != self.identity:
            raise UserError(f"{path} is of another run; {again}", command=hint)
        return summary

    @property
    def models(self) -> list[str]:
        """The names of its models: global first, then the learners."""
        return [name for name in [GLOBAL, *self.recipe.learners] if self.model_file(name).is_file()]

    def model(self, name: str = GLOBAL) -> nn.Module:
        """A model of this run, refused where its card says that it is another one."""
        path = self.model_file(name).with_suffix("")
        card = read_extra(path)
        for field, ours in (("run", self.identity), ("model", name)):
            if card.get(field, ours) != ours:
                raise UserError(f"{path}.safetensors is of another {field}; restore the file that this run wrote")
        return load_model(path)

    def model_digest(self, name: str = GLOBAL) -> str:
        """The SHA-256 of a model's file."""
        return digest(self.model_file(name).read_bytes())

    @property
    def recorded_suites(self) -> list[str]:
        """The suites that the global model was evaluated by."""
        found = self.evaluations.glob(self.record_file("*").name)
        suites = sorted(path.stem.removeprefix(f"{GLOBAL}-") for path in found)
        return [suite for suite in suites if suite not in ANALYSES]

    def record(self, suite: str, name: str = GLOBAL) -> dict[str, Any]:
        """The record of an evaluation, its figures recomputed from the verdicts of the images."""
        return read_record(self.record_file(suite, name))

    def suite_records(self, name: str = GLOBAL) -> list[dict[str, Any]]:
        """All records of attack suites on a model that can be believed; the others are left out with a warning."""
        found = []
        for path in sorted(self.evaluations.glob(self.record_file("*", name).name)):
            if path not in [self.record_file(suite, name) for suite in ANALYSES]:
                try:
                    found.append(read_record(path))
                except UserError as error:
                    warnings.warn(f"left out: {error}", stacklevel=2)
        return found

    def analysis(self, suite: str, name: str = GLOBAL) -> dict[str, Any]:
        """The record of a measurement that is no list of attacks (`ANALYSES`), its figures recomputed."""
        return _READERS[suite](self.record_file(suite, name))

    def write_analysis(self, record: Mapping[str, Any], name: str = GLOBAL) -> None:
        """Keep a sealed record of such a measurement."""
        write_json(self.record_file(record["suite"], name), record)
        remove_leftovers(self.evaluations)

    def write_record(self, result: SuiteResult, name: str = GLOBAL) -> None:
        """Keep what an evaluation found; `compare` reads it."""
        write_json(self.record_file(result.suite.name, name), sealed(result.record()))
        remove_leftovers(self.evaluations)

    @property
    def dial_record(self) -> dict[str, Any] | None:
        """The last dial of this run, if there was one; one that was changed or damaged is refused by name."""
        path = self.dial_record_file
        if not path.is_file():
            return None
        record = read_json(path)
        if seal_holds(record) is not True:
            raise UserError(f"{path} was changed since it was written (its digest differs); dial the run again")
        return record

    def write_dial(self, record: Mapping[str, Any]) -> None:
        write_json(self.dial_record_file, sealed(record))

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, device and command of the last training; empty for a run that was made otherwise."""
        return read_json(self.environment_file) if self.environment_file.is_file() else {}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.summary_file, sealed(summary))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        write_json(self.environment_file, environment)


def history_rows(metrics: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a journal by epoch, nested fields as `train/linf/loss` and `validation/global/natural`."""
    from generalist.runs.trackers import scalars  # which knows run folders

    rows: dict[int, dict[str, Any]] = {}
    for line in metrics:
        row = rows.setdefault(line["epoch"], {"epoch": line["epoch"], "step": line["step"]})
        for key, value in line.items():
            if key == "models":
                row |= dict(scalars(value, line["kind"]))
            elif isinstance(value, Mapping):
                row |= dict(scalars(value, key))
            elif isinstance(value, bool | int | float):
                row[key] = value
    return [rows[epoch] for epoch in sorted(rows)]


def load(
    path: str | Path, name: str = GLOBAL, *, model: nn.Module | Callable[[], nn.Module] | None = None
) -> nn.Module:
    """A trained model, in eval mode.

    Args:
        path: A run folder, or a model file that a run or `save_model` wrote.
        name: Which model of a run: `global`, or the name of a learner.
        model: The network, or a function that makes it, where it was given to `fit` as an object and no file says how
            to build it. It is remembered in this process: `evaluate`, `dial` and all others find it then.

    Returns:
        A module that takes images [N, C, H, W] in [0, 1] and returns logits [N, K]; its normalisation is inside.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-nt", out=tmp / "loaded", overrides=small)
        >>> generalist.load(tmp / "loaded", "natural").spec.classes
        10
    """
    path = Path(path)
    if not path.exists() and not path.with_name(f"{path.name}.safetensors").exists():
        raise UserError(f"there is no run folder and no model file {path}")
    if not path.is_dir():
        if model is not None and is_given(called := read_spec(path).name):
            remember_as(called, model)
        return load_model(path)
    run = Run(path)
    if model is not None and is_given(run.recipe.model.name):
        remember_as(run.recipe.model.name, model)
    if name not in run.models:
        raise UserError(f"{path} has no model {name!r} yet; it has {', '.join(run.models) or 'none'}")
    return run.model(name)
