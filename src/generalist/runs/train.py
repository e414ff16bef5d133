"""A run folder that explains itself, and the function that fills it."""

import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from generalist.core.errors import RunError, UserError
from generalist.core.files import (
    fingerprint,
    read_json,
    read_text,
    remove_leftovers,
    seal_holds,
    sealed,
    user_path,
    write_atomically,
    write_json,
)
from generalist.distributed import ranks
from generalist.distributed.shared_batchnorm import has_unshared_batchnorm
from generalist.evaluation import model_hash
from generalist.models import load_model, load_weights, read_extra
from generalist.recipes.catalogue import load_recipe, read_yaml
from generalist.recipes.cost import passes_per_step
from generalist.recipes.schema import RUNTIME_FIELDS, Recipe, decisive, first_difference, parse_recipe, settings_between
from generalist.report.console import Reporter, Silent
from generalist.runs.experiment import Experiment, build, build_network
from generalist.runs.recorder import recorder
from generalist.training.guards import interrupts, sole_owner
from generalist.training.journal import read_journal
from generalist.training.loop import fit
from generalist.training.placement import Phase, phases
from generalist.training.selection import Selection
from generalist.version import __version__

RECIPE_DIGEST = "# digest: "
"""How the first line of a run's recipe.yaml begins."""


@dataclass(frozen=True)
class Run:
    """A run folder: recipe.yaml, environment.json, metrics.jsonl, summary.json, checkpoints/, models/, figures/."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if not (self.folder / "recipe.yaml").is_file():
            raise UserError(f"{self.folder} is not a run folder: it has no recipe.yaml")

    @property
    def recipe(self) -> Recipe:
        return parse_recipe(self.written_recipe)

    @property
    def written_recipe(self) -> dict[str, Any]:
        """The recipe as its file has it, if the fields that decide results are as they were written."""
        path = self.folder / "recipe.yaml"
        raw = read_yaml(path)
        first, _, _ = read_text(path).partition("\n")
        if first.startswith(RECIPE_DIGEST) and first.removeprefix(RECIPE_DIGEST).strip() != fingerprint(decisive(raw)):
            raise UserError(f"{path} was changed since the run was made (its digest differs); restore it")
        return raw

    @property
    def identity(self) -> str:
        """What its checkpoints and models are marked with: the digest of the recipe."""
        return fingerprint(decisive(self.written_recipe))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_journal(self.folder / "metrics.jsonl", run=self.identity)

    @property
    def finished(self) -> bool:
        """Whether there is a summary that can be read; a damaged one is named."""
        if not (self.folder / "summary.json").is_file():
            return False
        try:
            _ = self.summary
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
            return False
        return True

    @property
    def summary(self) -> dict[str, Any]:
        path = self.folder / "summary.json"
        again = f"generalist train … --out {self.folder} --resume"
        if not path.is_file():
            raise UserError(f"{self.folder} is not finished; go on with: {again}")
        summary = read_json(path)
        # the recipe's digest is in no summary that was written without one of its own
        intact = seal_holds(summary) if "recipe_sha256" in summary else seal_holds(summary) is not False
        if not intact or not isinstance(summary.get("selected"), dict):
            raise UserError(f"{path} was changed since it was written; make it anew with: {again}")
        if summary.get("recipe_sha256", self.identity) != self.identity:
            raise UserError(f"{path} is of another run; make it anew with: {again}")
        return summary

    @property
    def models(self) -> list[str]:
        """global first, then the learners."""
        names = {path.stem for path in (self.folder / "models").glob("*.safetensors")}
        return [name for name in ["global", *self.recipe.learners] if name in names]

    def model(self, name: str = "global") -> nn.Module:
        """A model of this run, refused where its card says that it is another one."""
        path = self.folder / "models" / name
        card = read_extra(path)
        for field, ours in (("run", self.identity), ("model", name)):
            if card.get(field, ours) != ours:
                raise UserError(f"{path}.safetensors is of another {field}; restore the file that this run wrote")
        return load_model(path)


def train(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    download: bool = False,
    overrides: list[str] | None = None,
    method: str | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Train a recipe into a run folder (runs/<name> if not given); a setting needs a `method`."""
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides or [], method=method)
    elif overrides or method:
        raise UserError("overrides and method go with a recipe's name or file; this recipe is complete already")
    folder = user_path(out) if out is not None else Path("runs") / recipe.name
    reporter = reporter if reporter is not None and ranks.is_main() else Silent()
    resume = resume or ranks.restarted()
    ranks.run_on_main(lambda: _check_folder(folder, recipe, resume=resume))
    needs = {need: _needed(source) for need, source in recipe.needs.items()}
    experiment = build(recipe, download=download)
    with ExitStack() as held:
        ranks.run_on_main(lambda: held.enter_context(sole_owner(folder)))
        ranks.run_on_main(lambda: _check_folder(folder, recipe, resume=resume))
        ranks.run_on_main(lambda: remove_leftovers(folder))
        finished = resume and (folder / "recipe.yaml").exists() and Run(folder).finished
        if ranks.all_gather(finished)[0]:
            reporter.say(f"{folder} is finished already")
            return Run(folder)
        ranks.run_on_main(lambda: _write_recipe(folder, recipe))
        networks: dict[str, nn.Module] = {}
        if recipe.needs:
            networks = _obtain(needs, experiment, folder / "needs", reporter)
            experiment = build(recipe, dataset=experiment.dataset, networks=networks)
        state = experiment.state
        state.owner = {"recipe": Run(folder).identity, "data": experiment.data_digest()}
        state.owner |= {f"network {need!r}": model_hash(network) for need, network in networks.items()}
        ranks.run_on_main(lambda: _warn_of_damaged_models(folder, recipe))
        if resume and state.load(folder / "checkpoints"):
            reporter.say(f"resumed {folder} at step {state.step} of {experiment.plan.steps}")
        if ranks.world() > 1:
            state.share_(placed(experiment, ranks.world()))
            _warn_of_split_batchnorm(experiment)
        ranks.run_on_main(lambda: write_json(folder / "environment.json", environment(experiment)))
        with recorder(folder, experiment, reporter) as events, interrupts() as caught:
            fit(
                state,
                experiment.plan,
                feed=experiment.feed,
                seed=recipe.seed,
                redistribute_=experiment.redistribute_,
                events=events,
                checkpoints=folder / "checkpoints",
                interrupts=caught,
                bad_steps=recipe.training.bad_steps,
            )
        ranks.run_on_main(lambda: _finish(folder, experiment))
    return Run(folder)


def _finish(folder: Path, experiment: Experiment) -> None:
    for wrong in _damaged_models(folder, _validated(folder, last=experiment.recipe.select == "last")):
        raise RunError(f"{wrong}; all else is trained: restore the file and add --resume, or train the run again")
    write_json(folder / "summary.json", sealed(_summary(folder, experiment)))
    from generalist.report.figures import draw_run  # matplotlib is slow to import, and for this alone

    recipe = experiment.recipe
    draw_run(Run(folder).metrics, folder / "figures", title=recipe.name, select=recipe.select)


def placed(experiment: Experiment, count: int) -> list[Phase]:
    """Which of so many ranks have which learner of this experiment, and when."""
    recipe = experiment.recipe
    costs = {name: passes_per_step(section) for name, section in recipe.learners.items()}
    return phases(experiment.plan, costs, ranks=count, batch_size=recipe.training.batch_size)


def _warn_of_split_batchnorm(experiment: Experiment) -> None:
    """Where BatchNorm sees a part of a batch only, the result depends on the number of ranks."""
    split = any(len(placed) > 1 for phase in experiment.state.phases for placed in phase.ranks.values())
    parted = any(has_unshared_batchnorm(learner.model) for learner in experiment.state.learners.values())
    if split and parted and ranks.is_main():
        switched_off = not experiment.recipe.training.sync_batchnorm
        why = "training.sync_batchnorm=false" if switched_off else "this kind of BatchNorm cannot be shared"
        warnings.warn(
            f"the result depends on the number of ranks: batches are split among {ranks.world()} of them,"
            f" and BatchNorm sees each rank's part alone ({why})",
            stacklevel=3,
        )


def _needed(source: str, trail: tuple[str, ...] = ()) -> Run | Path | Recipe:
    """What a recipe needs, as it is there: a run, a weights file, or a recipe that is to be trained before."""
    path = user_path(source)
    if path.is_dir():
        return Run(path)
    if path.is_file() and path.suffix not in (".yaml", ".yml"):
        return path
    if source in trail:
        raise UserError(f"recipes need each other in a circle: {' → '.join((*trail, source))}")
    recipe = load_recipe(source)
    for other in recipe.needs.values():
        _needed(other, (*trail, source))
    return recipe


def _obtain(
    needs: Mapping[str, Run | Path | Recipe], experiment: Experiment, folder: Path, reporter: Reporter
) -> dict[str, nn.Module]:
    """The networks themselves. What must be trained is trained on the recipe's own data, with its own network."""
    recipe, networks = experiment.recipe, dict[str, nn.Module]()
    for name, need in needs.items():
        if isinstance(need, Recipe):
            shared = {field: getattr(recipe, field) for field in ("seed", "model", "validation", "select")}
            shared["data"] = recipe.data.model_copy(update={"extra": None})
            shared["training"] = recipe.training.model_copy(update={"epochs": need.training.epochs})
            reporter.say(f"{recipe.name} needs {name!r}: {need.name} comes first, {need.training.epochs} epochs")
            before = need.model_copy(update=shared)
            need = train(before, out=folder / name, resume=(folder / name).exists(), reporter=reporter)
        if isinstance(need, Run):
            networks[name] = need.model()
        else:
            networks[name] = build_network(recipe, experiment.dataset)
            load_weights(networks[name], need)
        _check_network(name, networks[name], experiment)
    return networks


def _write_recipe(folder: Path, recipe: Recipe) -> None:
    """With the digest of the fields that decide results. Of a run that goes on, only the others are written anew."""
    raw = yaml.safe_load(recipe.to_yaml())
    if (folder / "recipe.yaml").exists():
        raw = {**raw, **decisive(Run(folder).written_recipe)}
        for section, field in (path for path in RUNTIME_FIELDS if len(path) == 2):
            raw[section][field] = recipe.plain()[section][field]
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    write_atomically(folder / "recipe.yaml", f"{RECIPE_DIGEST}{fingerprint(decisive(raw))}\n{text}".encode())


def _warn_of_damaged_models(folder: Path, recipe: Recipe) -> None:
    """Before a run goes on: what is wrong with the models selected so far.

    It is not refused: a kill between the writes of a model's two files looks alike, and mends itself when the same
    epoch is validated again.
    """
    saved = {path.stem for path in (folder / "models").glob("*.*") if not path.name.startswith(".")}
    expected = saved | (_validated(folder) if recipe.select != "last" else set())
    for wrong in _damaged_models(folder, expected):
        warnings.warn(f"{wrong}; unless a later epoch is better, this run will end without that model", stacklevel=2)


def _damaged_models(folder: Path, names: Iterable[str]) -> list[str]:
    selection = Selection(folder / "models", rule="last", about={"run": Run(folder).identity})
    return [wrong for name in sorted(names) if (wrong := selection.damage(name))]


def _validated(folder: Path, *, last: bool = False) -> set[str]:
    """The models that the run has measured so far, or in its last validation."""
    rows = [row for row in Run(folder).metrics if row["kind"] == "validation"]
    return {name for row in (rows[-1:] if last else rows) for name in row["models"]}


def _check_network(name: str, network: nn.Module, experiment: Experiment) -> None:
    """It must take the images of this run and know its classes."""
    ours, theirs = (getattr(model, "spec", None) for model in (experiment.state.global_model, network))
    for field in ("channels", "size", "classes"):
        here, there = getattr(ours, field, None), getattr(theirs, field, None)
        if here != there:
            raise UserError(f"needs.{name}: a network for {field} {there} was given, this run has {here}")


def _check_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A folder that holds something else is refused before anything is loaded or written."""
    if not (folder / "recipe.yaml").exists():
        leftovers = [path for path in folder.glob("*") if path.name != ".lock"] if folder.exists() else []
        if leftovers:
            raise UserError(f"{folder} is not empty and not a run folder; give another --out")
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; give a folder as --out")
        return
    theirs = Run(folder).recipe
    difference = first_difference(recipe, theirs)
    if difference:
        changes = [part for change in settings_between(recipe, theirs) for part in ("--set", change)]
        again = f"repeat the --set of the first start: {shlex.join(changes)}, or " if resume and changes else ""
        raise UserError(f"{folder} holds a run of another recipe: {difference}; {again}give another --out")
    if not resume:
        raise UserError(f"{folder} holds a run of this recipe already; add --resume to go on or give another --out")


def environment(experiment: Experiment) -> dict[str, Any]:
    """What a number may depend on besides the recipe."""
    versions = {"generalist": __version__, "python": platform.python_version()}
    versions |= {"torch": torch.__version__, "numpy": np.__version__}
    return {
        "versions": versions,
        "platform": platform.platform(),
        "device": str(experiment.device),
        "device_name": torch.cuda.get_device_name() if experiment.device.type == "cuda" else platform.processor(),
        "precision": str(experiment.precision).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "ranks": ranks.world(),
        "cores": os.cpu_count(),
        "command": sys.argv,
        "images": {part: len(getattr(experiment.dataset, part)) for part in ("train", "validation", "test")},
    }


def _summary(folder: Path, experiment: Experiment) -> dict[str, Any]:
    recipe, state, plan = experiment.recipe, experiment.state, experiment.plan
    selection = Selection(folder / "models", rule=recipe.select)
    return {
        "recipe": recipe.name,
        "recipe_sha256": state.owner["recipe"],
        "epochs": plan.epochs,
        "steps": state.step,
        "seconds": round(state.seconds, 1),
        "parameters": sum(p.numel() for p in state.global_model.parameters()),
        "live_epochs": {name: plan.active_epochs(name) for name in state.learners},
        "selected_by": recipe.select,
        "selected": {name: selection.kept(name) for name in ["global", *state.learners]},
    }
