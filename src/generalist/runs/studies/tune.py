"""A search for better recipes: several objectives at once, judged on validation, hopeless trials stopped early."""

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from generalist.core.errors import RunError, UserError, one_line, shown, unknown
from generalist.core.files import fingerprint, user_path
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.differences import decisive
from generalist.recipes.schema import Recipe
from generalist.report.comparison import NATURAL
from generalist.report.console import Reporter, Silent, duration
from generalist.runs.experiment import load_data
from generalist.runs.paths import GLOBAL
from generalist.runs.studies.cost import Estimator, Seconds
from generalist.runs.studies.ledger import GRACE_SECONDS, KILLED, STOPPED, Claim, Ledger
from generalist.runs.studies.plan import RUNS, Judged, Trial
from generalist.runs.studies.search import CURVE, ERROR, FOLDER, HOPELESS, Search, counts
from generalist.runs.studies.space import SEARCHED, Knob, knobs_of
from generalist.runs.studies.study import StudyFiles
from generalist.runs.studies.trial import ShareReporter
from generalist.runs.studies.tuned import Tuned, sum_up
from generalist.runs.studies.worker import beating, run_workers
from generalist.runs.train import train
from generalist.runs.workers import one_thread
from generalist.training.guards import Interrupted, InUse

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 8
"""So many are drawn at random before the sampler learns from them."""
MIN_PEERS, MIN_SHARE = 4, 0.3
"""A trial is compared with at least so many finished ones, and not before this share of training."""


class Hopeless(Exception):
    """A trial that is behind the median of the finished ones in every objective."""


def tune(
    recipe: str | Path,
    *,
    objectives: Sequence[str] = (NATURAL, "linf", "l2"),
    budget_seconds: float | None = None,
    trials: int | None = None,
    searched: Sequence[str] = tuple(SEARCHED),
    at_least: Mapping[str, float] | None = None,
    maximise: str | None = None,
    out: str | Path | None = None,
    storage: str | None = None,
    workers: int = 1,
    overrides: Sequence[str] = (),
    method: str | None = None,
    root: str | None = None,
    download: bool = False,
    seed: int = 0,
    grace_seconds: float = GRACE_SECONDS,
    reporter: Reporter | None = None,
) -> Tuned:
    """Search around a recipe, on its validation split, and write the chosen recipe as a file.

    Args:
        recipe: A shipped recipe's name or a YAML file.
        objectives: natural, and norms that the recipe validates under; `mean` is the mean over its threats.
        budget_seconds: No trial is begun that would take longer than this, from now.
        trials: At most so many trials, over all processes and commands that share the storage.
        searched: Which kinds of fields, of `SEARCHED`.
        at_least: The least that objectives of the chosen trial must be, in percent.
        maximise: Which objective it has most of; the sum of all if not given.
        out: The folder for runs and results.
        storage: Where processes and machines share the search: a file, or the URL of a database.
        workers: So many processes of one thread each; one is this process itself.
        overrides: Recipe fields to change before the search.
        method: Which method, for a setting or a file that extends one.
        root: The folder that has the data.
        download: Fetch missing data from its official source.
        seed: Of the search; the recipe has its own.
        grace_seconds: After how long without a sign of life a worker elsewhere is taken for dead.
        reporter: Where progress goes.

    Returns:
        The front and the chosen recipe.
    """
    reporter = reporter or Silent()
    if budget_seconds is None and trials is None:
        raise UserError("a search needs an end: give a budget or a number of trials", command="--budget 4h")
    loaded = load_recipe(recipe, overrides, method=method)
    asked = _checked(loaded, objectives, at_least or {}, maximise)
    knobs_of(loaded, searched)
    folder = user_path(out) if out is not None else Path("tuned") / loaded.name
    files = StudyFiles(folder)
    base = str(user_path(recipe).resolve()) if user_path(recipe).is_file() else str(recipe)
    seconds = _price(loaded, folder, download=download)
    if budget_seconds is not None and budget_seconds < seconds.total:
        needed = duration(seconds.total)
        raise UserError(f"a budget of {duration(budget_seconds)} is below one trial, which takes about {needed} here")
    load_data(loaded if root is None else _rooted(loaded, root), download=download)
    search = Search(
        base, method, tuple(overrides), asked, tuple(searched), folder, storage or str(files.storage), seconds, root,
        None if budget_seconds is None else time.time() + budget_seconds, trials, seed, download, grace_seconds,
    )  # fmt: skip
    ledger = search.ledger()
    _enqueue_given(search, ledger)
    fitting = "" if budget_seconds is None else f", about {int(budget_seconds * workers / seconds.total)} of them fit"
    reporter.say(f"{search.name}: a trial takes about {duration(seconds.total)} here{fitting}")
    total = trials or max(1, int((budget_seconds or 0.0) * workers / seconds.total))
    with reporter.bar(search.name, 0, total):
        look = partial(_look, search, ledger, total, reporter)
        run_workers(partial(_search, search), workers, look=look, say=reporter.say)
    trials_done = _study(search, ledger).get_trials(deepcopy=False)
    return sum_up(search, trials_done, files, at_least=at_least or {}, maximise=maximise)


def _rooted(recipe: Recipe, root: str) -> Recipe:
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": root})})


def _checked(
    recipe: Recipe, objectives: Sequence[str], at_least: Mapping[str, float], maximise: str | None
) -> tuple[str, ...]:
    norms = [threat.norm for threat in recipe.validation.threats]
    known = [NATURAL, *dict.fromkeys(norms), *(["mean"] if norms else [])]
    for name in objectives:
        if name not in known:
            raise unknown("objective", name, known)
    if len(set(objectives)) < 2 or len(set(objectives)) < len(objectives):
        raise UserError(f"give two or more objectives, each once, of {', '.join(known)}; got {shown(list(objectives))}")
    for name in (*at_least, *([maximise] if maximise else [])):
        if name not in objectives:
            raise unknown("objective of this search:", name, objectives)
    return tuple(objectives)


def _price(recipe: Recipe, folder: Path, *, download: bool) -> Seconds:
    """Training and validation alone: a search attacks no test image."""
    found = Estimator(download)(Trial("", "", recipe, folder, Judged(("pgd20",), 1)))
    return Seconds(found.training, found.validation, 0.0)


def _enqueue_given(search: Search, ledger: Ledger) -> None:
    """The recipe as it is given comes first, so that every other is compared with it."""
    knobs = knobs_of(search.recipe, search.searched)
    with ledger.exclusive():
        study = _study(search, ledger)
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial({knob.name: knob.given for knob in knobs})


def _study(search: Search, ledger: Ledger) -> "optuna.Study":
    import optuna

    done = len(ledger.storage.get_all_trials(ledger.storage.get_study_id_from_name(search.name), deepcopy=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # options of samplers that may still change
        sampler = optuna.samplers.TPESampler(
            seed=search.seed + done + os.getpid() % 1000, n_startup_trials=STARTUP_TRIALS, constant_liar=True
        )
        return optuna.load_study(study_name=search.name, storage=ledger.storage, sampler=sampler)


def _search(search: Search, *, look: Callable[[float], None], parent: int | None = None) -> None:
    """Trials in this process until the budget is used up."""
    ledger = search.ledger()
    knobs = knobs_of(search.recipe, search.searched)
    while search.deadline is None or time.time() + search.seconds.total <= search.deadline:
        with ledger.exclusive():
            study = _study(search, ledger)
            _take_over(study, ledger)
            trials = study.get_trials(deepcopy=False)
            waiting = any(trial.state.name == "WAITING" for trial in trials)
            counted = [trial for trial in trials if trial.state.name != "FAIL" or ERROR in trial.user_attrs]
            if search.most_trials is not None and len(counted) >= search.most_trials and not waiting:
                return
            trial = study.ask({knob.name: knob.distribution() for knob in knobs})
        _try(search, study, trial, knobs, ledger, look=look, parent=parent)


def _take_over(study: "optuna.Study", ledger: Ledger) -> None:
    """What killed workers had begun is begun again, from its last checkpoint."""
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "RUNNING" and ledger.is_dead(trial) and ledger.close(trial, KILLED):
            study.enqueue_trial(trial.params)


def _try(
    search: Search, study: "optuna.Study", trial: "optuna.Trial", knobs: Sequence[Knob], ledger: Ledger, *,
    look: Callable[[float], None], parent: int | None,
) -> None:  # fmt: skip
    from optuna.trial import TrialState

    fields = {knob.name: knob.override(trial.params[knob.name]) for knob in knobs}
    claim = Claim(ledger, "", trial._trial_id)
    claim.beat(0.0)
    share = 0.0

    def tell(new: float) -> None:
        nonlocal share
        share = new
        look(share)

    try:
        recipe = search.changed(fields)
        folder = search.folder / RUNS / f"{recipe.name}-{fingerprint(decisive(recipe.plain()))[:10]}"
        trial.set_user_attr(FOLDER, str(folder))
        with beating(claim, lambda: share, parent), one_thread():
            judge = _Judge(search, study, trial, recipe.training.epochs, tell)
            run = train(recipe, out=folder, resume=True, download=search.download, reporter=judge)
    except Hopeless as hopeless:
        trial.set_user_attr(HOPELESS, str(hopeless))
        study.tell(trial, state=TrialState.PRUNED)
    except (KeyboardInterrupt, Interrupted, SystemExit, InUse) as stopped:
        claim.give_up(STOPPED)
        if not isinstance(stopped, InUse):
            study.enqueue_trial(trial.params)
            raise
    except Exception as error:
        ours = isinstance(error, UserError | RunError)
        claim.fail(one_line(str(error) if ours else f"{type(error).__name__}: {error}"))
    else:
        scores = run.summary["selected"][GLOBAL]
        study.tell(trial, _values(scores, search.objectives))


def _values(scores: Mapping[str, Any], objectives: Sequence[str]) -> list[float]:
    """The objectives, of what a validation found."""
    robust = {str(threat): float(value) for threat, value in scores["robust"].items()}
    by_name = {NATURAL: float(scores["natural"]), "mean": sum(robust.values()) / max(1, len(robust))}
    for threat, value in robust.items():
        by_name.setdefault(threat.partition(":")[0], value)
    return [by_name[name] for name in objectives]


class _Judge(ShareReporter):
    """Watches the validations of a trial, and ends it where it is behind in everything."""

    def __init__(
        self, search: Search, study: "optuna.Study", trial: "optuna.Trial", epochs: int, tell: Callable[[float], None]
    ) -> None:
        super().__init__(search.seconds, tell)
        self._search, self._study, self._trial, self._epochs = search, study, trial, epochs
        self._curve: dict[str, list[float]] = {}

    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None:
        values = _values(models[GLOBAL], self._search.objectives)
        self._curve[str(epoch)] = values
        self._trial.set_user_attr(CURVE, self._curve)
        if MIN_SHARE * self._epochs <= epoch < self._epochs:
            peers = [
                trial.user_attrs[CURVE][str(epoch)]
                for trial in self._study.get_trials(deepcopy=False)
                if trial.state.name == "COMPLETE" and str(epoch) in trial.user_attrs.get(CURVE, {})
            ]
            if is_hopeless(values, peers):
                raise Hopeless(f"below the median of {len(peers)} trials in every objective after epoch {epoch}")


def is_hopeless(values: Sequence[float], peers: Sequence[Sequence[float]]) -> bool:
    """Whether a trial is below the median of enough others in every objective."""
    if len(peers) < MIN_PEERS:
        return False
    return all(value < median(column) for value, column in zip(values, zip(*peers, strict=True), strict=True))


def _look(search: Search, ledger: Ledger, total: int, reporter: Reporter, share: float | None = None) -> None:
    """Progress over the whole search: of the trials that are to come, or of the time that is left."""
    study = ledger.storage.get_study_id_from_name(search.name)
    ended = [trial for trial in ledger.storage.get_all_trials(study, deepcopy=False) if counts(trial)]
    reporter.advance(min(len(ended), total), total, share=min(1.0, (len(ended) + (share or 0.0)) / total))
