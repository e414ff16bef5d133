"""A recipe into a run folder: data, needed networks, training, models, summary and figures."""

import os
import platform
import resource
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from generalist.core.errors import RunError, UserError
from generalist.core.files import user_path
from generalist.distributed import ranks
from generalist.distributed.shared_batchnorm import has_unshared_batchnorm
from generalist.evaluation import model_hash
from generalist.models import load_weights
from generalist.recipes.catalogue import Overrides, load_recipe
from generalist.recipes.cost import cost_in_at, passes
from generalist.recipes.schema import Recipe
from generalist.report.console import Reporter, Silent, make_reporter
from generalist.runs.claims import claimed_folder
from generalist.runs.experiment import Experiment, build, build_network
from generalist.runs.folder import Run
from generalist.runs.recorder import Callback, recorder
from generalist.runs.trackers import check_trackers
from generalist.training.guards import StoppedEarly, interrupts
from generalist.training.loop import fit
from generalist.training.placement import Phase, phases
from generalist.training.selection import Selection
from generalist.version import __version__


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    download: bool = False,
    overrides: Overrides = (),
    method: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train a recipe into a run folder.

    Args:
        recipe: A shipped name such as `digits-generalist-t`, a YAML file, a mapping of recipe fields, or a `Recipe`.
        out: The run folder; `runs/<name of the recipe>` if not given.
        resume: Go on from the last checkpoint of the run in that folder, bit for bit. A finished run is left alone.
        download: Fetch missing data from its official source.
        overrides: Recipe fields to change: `{"training.epochs": 10}`, or `["training.epochs=10"]`.
        method: Which method, for a setting or a file that extends one.
        callbacks: Functions that are called after each epoch with its row of `run.history`; one that returns something
            true ends training there.
        progress: Show progress, with the time left, on standard error.
        reporter: Where progress goes instead.

    Returns:
        The run: its models, metrics and summary.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-at", out=tmp / "at", overrides=small)
        >>> run.models
        ['global', 'linf']
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides, method=method)
    elif overrides or method:
        raise UserError("overrides and method go with a recipe's name or file; this recipe is complete already")
    folder = user_path(out) if out is not None else Path("runs") / recipe.name
    reporter = reporter or make_reporter(quiet=not progress)
    reporter = reporter if ranks.is_main() else Silent()
    resume = resume or ranks.restarted()
    with claimed_folder(folder, recipe, resume=resume) as claimed:
        finished = claimed.finished_run
        if finished is not None:
            reporter.say(f"{folder} is finished already")
            return finished
        ranks.run_on_main(lambda: check_trackers(recipe.track))
        needs = {need: _needed(source) for need, source in recipe.needs.items()}
        experiment = build(recipe, download=download)  # what cannot be built leaves no folder behind
        run = claimed.begin()
        networks: dict[str, nn.Module] = {}
        if needs:
            networks = _obtain(needs, experiment, run.needed, reporter)
            experiment = build(recipe, dataset=experiment.dataset, networks=networks)
        _mark_owner(run, experiment, networks)
        _train(run, experiment, reporter, resume=resume, callbacks=callbacks)
        ranks.run_on_main(lambda: _finish(run, experiment))
    return run


def _mark_owner(run: Run, experiment: Experiment, networks: Mapping[str, nn.Module]) -> None:
    """Whose the checkpoints are: those of another recipe, of other data or networks are refused."""
    owner = {"recipe": run.identity, "data": experiment.data_digest()}
    owner |= {f"network {need!r}": model_hash(network) for need, network in networks.items()}
    experiment.state.owner = owner


def _train(
    run: Run, experiment: Experiment, reporter: Reporter, *, resume: bool, callbacks: Sequence[Callback] = ()
) -> None:
    recipe, state = experiment.recipe, experiment.state
    ranks.run_on_main(lambda: _warn_of_damaged_models(run, recipe))
    if resume and state.load(run.checkpoints):
        reporter.say(f"resumed {run.folder} at step {state.step} of {experiment.plan.steps}")
    if ranks.world() > 1:
        state.share_(placed(experiment, ranks.world()))
        _warn_of_split_batchnorm(experiment)
    ranks.run_on_main(lambda: run.write_environment(environment(experiment)))
    with recorder(run, experiment, reporter, callbacks=callbacks) as events, interrupts() as caught:
        try:
            fit(
                state,
                experiment.plan,
                feed=experiment.feed,
                seed=recipe.seed,
                redistribute_=experiment.redistribute_,
                events=events,
                checkpoints=run.checkpoints,
                interrupts=caught,
                bad_steps=recipe.training.bad_steps,
            )
        except StoppedEarly:
            events.tick(state)
            state.save(run.checkpoints)
            reporter.say(f"stopped by a callback after {state.step} of {experiment.plan.steps} steps")


def _finish(run: Run, experiment: Experiment) -> None:
    for wrong in _damaged_models(run, _validated(run, last=experiment.recipe.select == "last")):
        raise RunError(f"{wrong}; all else is trained: restore the file and resume, or train the run again")
    run.write_summary(_summary(run, experiment))
    from generalist.report.figures import draw_run  # matplotlib is slow to import, and for this alone

    recipe = experiment.recipe
    draw_run(run.metrics, run.figures, title=recipe.name, select=recipe.select)


def placed(experiment: Experiment, count: int) -> list[Phase]:
    """Which of so many ranks have which learner of this experiment, and when."""
    recipe = experiment.recipe
    costs = passes(recipe, experiment.depths)
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


def _warn_of_damaged_models(run: Run, recipe: Recipe) -> None:
    """Before a run goes on: what is wrong with the models selected so far.

    It is not refused: a kill between the writes of a model's two files looks alike, and mends itself when the same
    epoch is validated again.
    """
    saved = {path.stem for path in run.models_folder.glob("*.*") if not path.name.startswith(".")}
    expected = saved | (_validated(run) if recipe.select != "last" else set())
    for wrong in _damaged_models(run, expected):
        warnings.warn(f"{wrong}; unless a later epoch is better, this run will end without that model", stacklevel=2)


def _damaged_models(run: Run, names: Iterable[str]) -> list[str]:
    selection = Selection(run.models_folder, rule="last", about={"run": run.identity})
    return [wrong for name in sorted(names) if (wrong := selection.damage(name))]


def _validated(run: Run, *, last: bool = False) -> set[str]:
    """The models that the run has measured so far, or in its last validation."""
    rows = [row for row in run.metrics if row["kind"] == "validation"]
    return {name for row in (rows[-1:] if last else rows) for name in row["models"]}


def _check_network(name: str, network: nn.Module, experiment: Experiment) -> None:
    """It must take the images of this run and know its classes."""
    ours, theirs = (getattr(model, "spec", None) for model in (experiment.state.global_model, network))
    for field in ("channels", "size", "classes"):
        here, there = getattr(ours, field, None), getattr(theirs, field, None)
        if here != there:
            raise UserError(f"needs.{name}: a network for {field} {there} was given, this run has {here}")


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


def _peak_memory(device: torch.device) -> int:
    """MiB that the main rank needed at most: on a GPU what torch allocated there, else the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
    return most >> 20 if sys.platform == "darwin" else most >> 10


def _summary(run: Run, experiment: Experiment) -> dict[str, Any]:
    recipe, state, plan = experiment.recipe, experiment.state, experiment.plan
    selection = Selection(run.models_folder, rule=recipe.select)
    return {
        "recipe": recipe.name,
        "recipe_sha256": state.owner["recipe"],
        "epochs": state.step // plan.steps_per_epoch,
        "steps": state.step,
        "seconds": round(state.seconds, 1),
        "cpu_seconds": round(state.cpu_seconds, 1),
        "peak_memory_mib": _peak_memory(experiment.device),
        "cost_in_at": round(cost_in_at(recipe, plan, experiment.depths), 3),
        "parameters": sum(p.numel() for p in state.global_model.parameters()),
        "live_epochs": {name: plan.active_epochs(name, since=recipe.first_epoch) for name in state.learners},
        "selected_by": recipe.select,
        "selected": {name: selection.kept(name) for name in ["global", *state.learners]},
    }
