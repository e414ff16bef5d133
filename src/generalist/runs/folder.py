"""A run folder: the only place that knows the file names of a run."""

import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from generalist.core.errors import RunError, UserError
from generalist.core.files import (
    digest,
    fingerprint,
    process_lives,
    read_json,
    read_text,
    remove_leftovers,
    seal_holds,
    sealed,
    write_atomically,
    write_json,
)
from generalist.core.names import ANALYSES, CURVE, OOD, RECIPE_FILE
from generalist.core.yaml_text import parse_yaml
from generalist.distributed import ranks
from generalist.evaluation import SuiteResult, read_curve, read_ood, read_record
from generalist.models import is_given, load_model, read_extra, read_spec, remember_as
from generalist.recipes.schema import (
    RUNTIME_FIELDS,
    Recipe,
    decisive,
    first_difference,
    parse_recipe,
    settings_between,
)
from generalist.training.guards import sole_owner
from generalist.training.journal import read_journal

GLOBAL = "global"
"""The name of the global model among the models of a run."""
_READERS = {CURVE: read_curve, OOD: read_ood}
_RECIPE_DIGEST = "# digest: "
"""How the first line of a run's recipe.yaml begins."""


@lru_cache(maxsize=1024)
def _parsed(path: Path, text: str) -> dict[str, Any]:
    """A recipe file; YAML is slow, and a run's recipe is asked for many times."""
    raw = parse_yaml(text, str(path))
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping of recipe fields, got {type(raw).__name__}")
    return raw


class RunPaths:
    """The files of a run by what they are for, whether they exist or not."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunPaths) and self.folder == other.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run: it has a recipe."""
        return self.recipe_file.is_file()

    @property
    def recipe_file(self) -> Path:
        return self.folder / RECIPE_FILE

    @property
    def environment_file(self) -> Path:
        return self.folder / "environment.json"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def summary_file(self) -> Path:
        return self.folder / "summary.json"

    @property
    def lock_file(self) -> Path:
        return self.folder / ".lock"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def models_folder(self) -> Path:
        return self.folder / "models"

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def evaluations(self) -> Path:
        """Records, and the verdicts that evaluations go on from."""
        return self.folder / "evaluations"

    @property
    def dial_folder(self) -> Path:
        """Points that a dial has evaluated, and the verdicts that its exports go on from."""
        return self.folder / "dial"

    @property
    def explanations(self) -> Path:
        """What `generalist explain` found, for each model and each set of options."""
        return self.folder / "explanations"

    @property
    def needed(self) -> Path:
        """The runs that were trained first because this one needs their networks, one folder each."""
        return self.folder / "needs"

    @property
    def modules(self) -> "ModulePaths":
        """What `generalist modules` found out."""
        return ModulePaths(self.folder / "modules")

    @property
    def given(self) -> Path:
        """What `fit` was given as objects: images and first weights."""
        return self.folder / "given"

    @property
    def given_data(self) -> Path:
        return self.given / "data.npz"

    @property
    def given_start(self) -> Path:
        return self.given / "start.safetensors"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def mlflow(self) -> Path:
        return self.folder / "mlflow"

    @property
    def wandb(self) -> Path:
        return self.folder / "wandb"

    def model_file(self, name: str = GLOBAL) -> Path:
        return self.models_folder / f"{name}.safetensors"

    def record_file(self, suite: str, name: str = GLOBAL) -> Path:
        return self.evaluations / f"{name}-{suite}.json"

    def analysis_figures(self, suite: str, name: str = GLOBAL) -> tuple[Path, Path]:
        """The figure of an analysis of a model, as PNG and as SVG."""
        return self.figures / f"{name}-{suite}.png", self.figures / f"{name}-{suite}.svg"

    def dial_file(self, key: str) -> Path:
        """The evaluated point of that key."""
        return self.dial_folder / f"{key[:32]}.json"

    @property
    def dial_record_file(self) -> Path:
        """The last dial: all of its points, and what each says of a few images."""
        return self.dial_folder / "last.json"

    def explanation_files(self, key: str) -> tuple[Path, Path]:
        """The JSON and the arrays of the explanation of that key."""
        return self.explanations / f"{key[:32]}.json", self.explanations / f"{key[:32]}.npz"

    def explain_figure(self, what: str, name: str = GLOBAL) -> Path:
        """The figure of a model's explanation, without its suffix."""
        return self.figures / (what if name == GLOBAL else f"{what}-{name}")

    def dial_figure(self, suffix: str) -> Path:
        return self.figures / f"dial{suffix}"

    def ways_figure(self, suffix: str) -> Path:
        """Losses and accuracies on the way between the endpoints of a dial."""
        return self.figures / f"dial-ways{suffix}"


@dataclass(frozen=True)
class ModulePaths:
    """The files of a measurement of modules: the report of each model, its figures, and what was measured so far."""

    folder: Path

    def report_file(self, name: str = GLOBAL) -> Path:
        return self.folder / f"{name}.json"

    def figure_files(self, name: str = GLOBAL) -> tuple[Path, Path]:
        return self.folder / f"{name}.png", self.folder / f"{name}.svg"

    def measured_file(self, key: str) -> Path:
        return self.folder / "measured" / f"{key[:20]}.json"


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
        marked = first.startswith(_RECIPE_DIGEST)
        if marked and first.removeprefix(_RECIPE_DIGEST).strip() != fingerprint(decisive(raw)):
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


class ClaimedFolder:
    """A folder that only this run may write to, before it is known whether there is anything to write."""

    def __init__(self, folder: Path, recipe: Recipe, *, resume: bool) -> None:
        self._paths, self._recipe, self._resume = RunPaths(folder), recipe, resume

    @property
    def finished_run(self) -> Run | None:
        """The run that is here already, if it is finished and was asked to go on. The same on all ranks."""
        found = ranks.run_on_main(lambda: self._resume and self._paths.exists and Run(self._paths.folder).finished)
        return Run(self._paths.folder) if ranks.all_gather(found)[0] else None

    def begin(self) -> Run:
        """Write the recipe: from now on the folder holds a run."""
        ranks.run_on_main(lambda: _write_recipe(self._paths, self._recipe))
        return Run(self._paths.folder)


@contextmanager
def claimed_folder(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[ClaimedFolder]:
    """Inside, the folder belongs to this run: nobody else trains in it, and it holds nothing but this recipe's run.

    All ranks call this together; the main rank does what is to be done. A folder that is made here and stays empty,
    because something went wrong before the run began, is removed again.
    """
    with ExitStack() as held:
        ranks.run_on_main(lambda: held.enter_context(_claimed(folder, recipe, resume=resume)))
        yield ClaimedFolder(folder, recipe, resume=resume)


@contextmanager
def _claimed(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[None]:
    _check_folder(folder, recipe, resume=resume)  # before anything is made
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    paths = RunPaths(folder)
    try:
        with sole_owner(paths.lock_file):
            _check_folder(folder, recipe, resume=resume)  # another process may have been faster
            remove_leftovers(folder)
            yield
    finally:
        if made and not paths.exists and {path.name for path in folder.glob("*")} <= {paths.lock_file.name}:
            shutil.rmtree(folder, ignore_errors=True)
            for place in made[1:]:
                with suppress(OSError):  # it holds something else by now, or could not be made
                    place.rmdir()


def check_free(folder: Path) -> None:
    """Refuse a folder for a new run that is a file, or holds anything."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder")


@contextmanager
def new_run(folder: Path, recipe: Recipe) -> Iterator[Run]:
    """A run that is made outside training. Inside, it lies in a temporary folder beside `folder`.

    At the end that becomes `folder`; if anything goes wrong before, nothing stays. All ranks call this together.
    """
    main_process = ranks.all_gather(os.getpid())[0]
    paths = RunPaths(folder.with_name(f".{folder.name}.{main_process}.partial"))
    made = [place for place in folder.absolute().parents if not place.exists()]
    try:
        ranks.run_on_main(lambda: check_free(folder))
        ranks.run_on_main(lambda: _remove_partial(folder))
        ranks.run_on_main(lambda: _write_recipe(paths, recipe))
        yield Run(paths.folder)
        ranks.run_on_main(lambda: _put_in_place(paths.folder, folder))
    except BaseException:
        if ranks.is_main():
            shutil.rmtree(paths.folder, ignore_errors=True)
            for place in made:
                with suppress(OSError):  # it holds something else by now
                    place.rmdir()
        raise


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is no run. Inside, it lies in a temporary folder beside `folder`; at the end it becomes that."""
    check_free(folder)
    _remove_partial(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    made = [place for place in folder.absolute().parents if not place.exists()]
    try:
        yield temporary
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for place in made:
            with suppress(OSError):  # it holds something else by now
                place.rmdir()
        raise


def _remove_partial(folder: Path) -> None:
    """What killed processes left of the same folder; a killed process cannot clean up."""
    for path in folder.parent.glob(f".{folder.name}.*.partial"):
        owner = path.name.removesuffix(".partial").rpartition(".")[2]
        if owner.isdecimal() and not process_lives(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path) -> None:
    try:
        os.replace(temporary, folder)  # an empty folder may be there
    except OSError as error:
        raise RunError(f"could not write {folder}: {error.strerror or error}") from None


def _check_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A folder that holds something else is refused before anything is loaded or written."""
    paths = RunPaths(folder)
    if not paths.exists:
        known = (paths.lock_file, paths.given)
        others = [path for path in folder.glob("*") if path not in known] if folder.exists() else []
        if others:
            raise UserError(f"{folder} is not empty and not a run folder; give another folder", command="--out FOLDER")
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; give a folder", command="--out FOLDER")
        return
    theirs = Run(folder).recipe
    difference = first_difference(recipe, theirs)
    if difference:
        changes = [part for change in settings_between(recipe, theirs) for part in ("--set", change)]
        again = f"repeat the --set of the first start: {shlex.join(changes)}, or " if resume and changes else ""
        raise UserError(
            f"{folder} holds a run of another recipe: {difference}; give the same recipe or another folder",
            command=f"{again}give another --out",
        )
    if not resume:
        raise UserError(
            f"{folder} holds a run of this recipe already; resume it or give another folder",
            command="--resume to go on, or another --out",
        )


def _write_recipe(paths: RunPaths, recipe: Recipe) -> None:
    """With the digest of the fields that decide results. Of a run that goes on, only the others are written anew."""
    raw = yaml.safe_load(recipe.to_yaml())
    if paths.exists:
        raw = {**raw, **decisive(Run(paths.folder).written_recipe)}
        for section, field in (path for path in RUNTIME_FIELDS if len(path) == 2):
            raw[section][field] = recipe.plain()[section][field]
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    content = f"{_RECIPE_DIGEST}{fingerprint(decisive(raw))}\n{text}"
    write_atomically(paths.recipe_file, content.encode())
