"""What a run notes of itself: journal, validations, selected models, and when a checkpoint is due."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from torch import nn

from generalist.core.files import user_path
from generalist.distributed import ranks
from generalist.recipes.cost import Workload
from generalist.report.console import Reporter
from generalist.runs.experiment import Experiment
from generalist.runs.folder import Run, history_rows
from generalist.runs.paths import GLOBAL
from generalist.runs.trackers import Tracker, open_trackers, scalars
from generalist.training.guards import StoppedEarly
from generalist.training.instruments import drift
from generalist.training.journal import Journal, NullJournal
from generalist.training.selection import Scores, Selection
from generalist.training.state import TrainState

Callback = Callable[[dict[str, Any]], object]
"""Called after each epoch with its row of `Run.history`; what is true ends training there."""


class Recorder:
    """What happens at the end of an epoch, and when a checkpoint is due."""

    def __init__(
        self,
        run: Run,
        experiment: Experiment,
        reporter: Reporter,
        journal: Journal | NullJournal,
        trackers: Sequence[Tracker],
        workload: Workload,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._experiment, self._reporter, self._workload = experiment, reporter, workload
        self._journal, self._trackers = journal, trackers
        self._callbacks, self._lines = callbacks, list[dict[str, Any]]()
        data = experiment.recipe.data
        root = None if data.root is None else str(user_path(data.root).resolve())
        trained_on = {"name": data.name, "root": root, "classes": list(experiment.dataset.classes)}
        about = {"run": experiment.state.owner["recipe"], "data": trained_on}
        self._selection = Selection(run.models_folder, rule=experiment.recipe.select, about=about)
        self._saved = self._ticked = time.monotonic()
        self._cpu = time.process_time()

    def tick(self, state: TrainState) -> None:
        now, cpu = time.monotonic(), time.process_time()
        state.seconds += now - self._ticked
        state.cpu_seconds += cpu - self._cpu
        self._ticked, self._cpu = now, cpu
        self._reporter.advance(state.step, self._experiment.plan.steps, share=self._workload.share(state.step))

    def save_due(self, state: TrainState) -> bool:
        training, plan = self._experiment.recipe.training, self._experiment.plan
        epoch, within = divmod(state.step, plan.steps_per_epoch)
        due = (within == 0 and (epoch % training.checkpoint_epochs == 0 or epoch == plan.epochs)) or (
            ranks.world() == 1 and time.monotonic() - self._saved > training.checkpoint_minutes * 60
        )
        if due:
            self._saved = time.monotonic()
        return due

    def epoch_ended(self, state: TrainState) -> None:
        plan = self._experiment.plan
        epoch = state.step // plan.steps_per_epoch
        self._lines.clear()
        tallies = state.take_tallies()
        live, means = list(tallies), {name: row for name, (row, _) in tallies.items()}
        for name, (row, steps) in tallies.items():
            state.regret.observe(name, mean_loss=row["loss"], steps=steps)
        weights = plan.weights(state.step - 1)
        validation = self._experiment.recipe.validation
        due = epoch % validation.every_epochs == 0 or epoch == plan.epochs
        record: dict[str, Any] = {
            "epoch": epoch,
            "seconds": round(state.seconds, 3),
            "gamma": weights,
            "lr": {name: self._lr(name, plan.progress(state.step - 1)) for name in live},
            "train": means,
            "idle": [name for name in state.learners if name not in live],
            "redistributed": plan.redistributes_in(epoch),
            "regret": state.regret.record(),
        }
        if due or ranks.world() == 1:  # parameters do not cross the network for a measurement alone
            if due:
                shown = state.learners if epoch == plan.epochs else live  # at the end also those that ended before
                models = {GLOBAL: self._experiment.global_model(), **{name: state.show_model(name) for name in shown}}
            else:
                state.materialise_global_()
            learners, center = state.parameter_trees()
            record["drift"] = drift({name: learners[name] for name in live}, center, weights)
        if ranks.world() > 1:
            record["bytes_sent"] = _added(ranks.all_gather(ranks.traffic.sent))
        self._note("epoch", state.step, record)
        losses = "  ".join(f"{name} {means[name]['loss']:.3f}" for name in live)
        self._reporter.epoch(epoch, plan.epochs, f"loss {losses}")
        if due:
            self._validate(state, epoch, models)
        if self._callbacks and self._asked_to_stop() and epoch < plan.epochs:
            self._end_early(state, epoch, due=due)
            raise StoppedEarly

    def _asked_to_stop(self) -> bool:
        """Tell the callbacks of the epoch, on the main rank; whether one of them wants training to end here."""
        answers = [callback(history_rows(self._lines)[0]) for callback in self._callbacks] if ranks.is_main() else []
        return bool(ranks.all_gather(any(answers))[0])

    def _end_early(self, state: TrainState, epoch: int, *, due: bool) -> None:
        """The models of all learners that have begun, validated and kept as at the end of training."""
        begun = [name for name in state.learners if self._experiment.recipe.window(name)[0] < epoch]
        models = {GLOBAL: self._experiment.global_model(), **{name: state.show_model(name) for name in begun}}
        self._validate(state, epoch, models, final=True, note=not due)

    def _note(self, kind: str, step: int, record: Mapping[str, Any]) -> None:
        self._journal.write(kind, step, record)
        self._lines.append({"kind": kind, "step": step, **record})
        for tracker in self._trackers:
            tracker.log(dict(scalars(record, kind)), step=step)

    def _lr(self, name: str, progress: Fraction) -> float:
        learner = self._experiment.state.learners[name]
        return learner.lr * learner.schedule(progress)

    def _validate(
        self, state: TrainState, epoch: int, models: dict[str, nn.Module], *, final: bool = False, note: bool = True
    ) -> None:
        recipe = self._experiment.recipe
        final = final or epoch == self._experiment.plan.epochs
        scores = {}
        for name, model in models.items():
            scores[name] = self._experiment.validate(model)
            if final:
                model, scores[name] = self._best_variant(name, model, scores[name])
            if ranks.is_main() and (recipe.select != "last" or final):
                self._selection.consider(name, model, scores[name], epoch=epoch, step=state.step)
        if not note:
            return
        split = "test" if recipe.select == "test" else "validation"
        records = {name: score.record() for name, score in scores.items()}
        self._note("validation", state.step, {"epoch": epoch, "split": split, "models": records})
        self._reporter.validation(epoch, records)

    def _best_variant(self, name: str, model: nn.Module, scores: Scores) -> tuple[nn.Module, Scores]:
        """By the rule that selects checkpoints; all but the model itself are validated here."""
        best = model, scores
        for variant in self._experiment.variants(name, model):
            found = scores if variant is model else self._experiment.validate(variant)
            if found.total > best[1].total:
                best = variant, found
        return best


@contextmanager
def recorder(
    run: Run, experiment: Experiment, reporter: Reporter, *, callbacks: Sequence[Callback] = ()
) -> Iterator[Recorder]:
    """The recorder of a run, with its journal open and its progress shown; only the main rank writes."""
    state = experiment.state
    main = ranks.is_main()
    journal = Journal(run.metrics_file, run=state.owner["recipe"], step=state.step) if main else NullJournal()
    trackers = open_trackers(run, step=state.step, say=reporter.say) if main else []
    completed = False
    try:
        recipe, step, plan = experiment.recipe, experiment.state.step, experiment.plan
        validated = min(len(experiment.selection_split), recipe.validation.images or len(experiment.selection_split))
        workload = Workload.of(recipe, plan, validated=validated, ranks=ranks.world(), depths=experiment.depths)
        with reporter.bar(recipe.name, step, plan.steps, share=workload.share(step)):
            yield Recorder(run, experiment, reporter, journal, trackers, workload, callbacks)
        completed = True
    finally:
        journal.close()
        for tracker in trackers:
            tracker.close(completed=completed)


def _added(sent: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bytes by purpose, over all ranks, since the run was started or resumed."""
    return {purpose: sum(row.get(purpose, 0) for row in sent) for purpose in sorted({p for row in sent for p in row})}
