"""The paper's algorithm, for any number of learners."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from generalist.core.types import Batch
from generalist.mixing import MixPlan
from generalist.training.guards import Interrupted, Interrupts, stop_if_diverged
from generalist.training.state import TrainState


class Events(Protocol):
    """What the loop reports to: a tick after each step, the end of each epoch, and when a checkpoint is due."""

    def tick(self, state: TrainState) -> None: ...
    def epoch_ended(self, state: TrainState) -> None: ...
    def save_due(self, state: TrainState) -> bool: ...


def fit(
    state: TrainState,
    plan: MixPlan,
    *,
    feed: Callable[[int], Iterator[Batch]],
    seed: int,
    redistribute_: Callable[[Sequence[str]], None],
    events: Events,
    checkpoints: Path,
    interrupts: Interrupts,
    bad_steps: int,
) -> None:
    """Train from state.step to the end of the plan (CVPR Algorithm 1)."""
    for batch in feed(state.step):
        step = state.step
        state.enter_epoch_(step // plan.steps_per_epoch)
        decay = plan.decay(step)
        for learner in state.learners.values():
            if state.is_local(learner.name) and plan.is_active(learner.name, step):
                terms = learner.step(batch, progress=plan.progress(step), key=(seed, learner.name, step))
                if plan.ends_epoch(step):
                    learner.end_epoch_()
                learner.update_average_(decay)
                if learner.bad_steps:
                    stop_if_diverged(learner, bad_steps=bad_steps, step=step)
                else:
                    state.tallies[learner.name].add(terms)
        state.mix_(weights=plan.weights_by_part(step), decay=decay)
        state.step += 1

        if plan.ends_epoch(step):
            events.epoch_ended(state)
        if receivers := plan.receivers(step):
            redistribute_(receivers)
        signum = interrupts.agreed(epoch_ended=plan.ends_epoch(step))
        if signum or events.save_due(state):
            state.save(checkpoints)
        if signum:
            raise Interrupted(signum)
        events.tick(state)
