"""Workers: processes that do the trials of a study one after the other until none is left for them."""

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from generalist.core.errors import RunError, UserError, one_line
from generalist.core.names import MEAN
from generalist.report.comparison import NATURAL
from generalist.runs.studies.cost import Seconds
from generalist.runs.studies.ledger import GRACE_SECONDS, Claim, Job, Ledger
from generalist.runs.studies.plan import Trial
from generalist.runs.studies.trial import Result, ShareReporter, run_trial
from generalist.runs.workers import one_thread
from generalist.training.guards import Interrupted, InUse

BEAT_SECONDS = 5.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """What a worker has to know; it travels to its process."""

    storage: str
    name: str
    trials: Mapping[str, Trial]
    seconds: Mapping[str, Seconds]
    deadline: float | None = None
    """By `time.time`: no trial is begun that would take longer than until then."""
    download: bool = False
    grace_seconds: float = GRACE_SECONDS

    def ledger(self) -> Ledger:
        return Ledger(self.storage, self.name, grace_seconds=self.grace_seconds)

    def may_begin(self, jobs: Mapping[str, Job]) -> list[str]:
        """The trials that can be begun: what they start from is there, and they end within the budget."""
        left = math.inf if self.deadline is None else self.deadline - time.time()
        return [
            key
            for key, trial in self.trials.items()
            if (trial.after is None or jobs[trial.after.key].state in ("done", "failed"))
            and self.seconds[key].total * (1 - jobs[key].share) <= left
        ]


Look = Callable[[Mapping[str, Job]], None]
"""Told how all trials stand."""


def work(task: Work, *, look: Look, parent: int | None = None) -> None:
    """Do trials in this process until all are done, or none may be begun any more; `look` is told how they stand.

    Where others are at work on the last ones, this waits for them, and takes over what they leave behind.
    """
    ledger = task.ledger()
    with one_thread():
        while True:
            jobs = ledger.jobs(task.trials)
            look(jobs)
            ready = task.may_begin(jobs)
            claim = ledger.claim(ready)
            if claim is not None:
                _do(task, claim, jobs, look=look, parent=parent)
            elif not any(jobs[key].state == "running" for key in ready):
                return
            else:
                _check_parent(parent)
                time.sleep(POLL_SECONDS)


def _do(task: Work, claim: Claim, jobs: Mapping[str, Job], *, look: Look, parent: int | None) -> None:
    trial = task.trials[claim.key]
    if trial.after is not None and jobs[trial.after.key].state == "failed":
        claim.fail(f"it starts from {trial.after.label}, which failed")
        return
    share = jobs[claim.key].share
    looked = 0.0

    def tell(new: float) -> None:
        nonlocal share, looked
        share = new
        if time.monotonic() - looked > POLL_SECONDS:
            looked = time.monotonic()
            look({**jobs, claim.key: Job(claim.key, "running", share)})

    try:
        with beating(claim, lambda: share, parent):
            result = run_trial(trial, download=task.download, reporter=ShareReporter(task.seconds[claim.key], tell))
    except InUse:  # its worker was silent for long, but lives
        claim.give_up()
        time.sleep(POLL_SECONDS)
    except (KeyboardInterrupt, Interrupted, SystemExit):
        claim.give_up()
        raise
    except Exception as error:
        claim.fail(
            one_line(str(error) if isinstance(error, UserError | RunError) else f"{type(error).__name__}: {error}")
        )
    else:
        claim.finish(result, values=values_of(result))


def values_of(result: Result) -> tuple[float, float]:
    """What Optuna's own tools show of a trial: natural accuracy, and what sums up robustness."""
    accuracy = result["accuracy"]
    last = list(accuracy.values())[-1]
    robust = accuracy.get(MEAN, accuracy.get("severity 5", last))
    return float(accuracy[NATURAL]), float(robust)


@contextmanager
def beating(claim: Claim, share: Callable[[], float], parent: int | None) -> Iterator[None]:
    """Signs of life while the trial runs. Without a parent the worker is asked to stop, as by a signal."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            try:
                claim.beat(share())
            except Exception as error:  # a database may be away for a while
                warnings.warn(f"the storage did not take a sign of life: {error}", stacklevel=1)
            if parent is not None and os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _check_parent(parent: int | None) -> None:
    if parent is not None and os.getppid() != parent:
        raise SystemExit


Run = Callable[..., None]
"""What a worker does: called with `look`, and in a process of its own with the number of its `parent`."""


def _serve(run: Run, parent: int) -> None:
    """A worker process."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    torch.set_num_threads(1)
    warnings.showwarning = _warn  # type: ignore[assignment]
    try:
        run(look=lambda *_: None, parent=parent)
    except (KeyboardInterrupt, Interrupted):
        sys.exit(STOPPED_CODE)
    except (UserError, RunError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        sys.exit(1)


STOPPED_CODE = 3
"""How a worker ends that was asked to stop."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(STOPPED_CODE)


def _warn(message: Warning | str, *_: Any) -> None:
    print(f"warning: {one_line(str(message))}", file=sys.stderr)


@contextmanager
def _processes(run: Run, count: int) -> Iterator[Sequence[BaseProcess]]:
    """So many processes of one thread each. Those that still run at the end are asked to stop after a whole step."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_serve, args=(run, os.getpid())) for _ in range(count)]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        for process in processes:
            process.start()
    finally:
        os.environ.pop("OMP_NUM_THREADS") if before is None else os.environ.update(OMP_NUM_THREADS=before)
    try:
        yield processes
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join()


def run_workers(run: Run, count: int, *, look: Callable[..., None], say: Callable[[str], None]) -> None:
    """Let so many workers run, one of them in this process itself; `look` is called often.

    A worker that is killed is not replaced; the others take its trial over.
    """
    if count == 1:
        run(look=look)
        return
    with _processes(run, count) as processes:
        told: set[int | None] = set()
        while any(process.is_alive() for process in processes):
            look()
            for process in processes:
                if not process.is_alive() and process.exitcode and process.pid not in told:
                    told.add(process.pid)
                    how = signal.Signals(-process.exitcode).name if process.exitcode < 0 else str(process.exitcode)
                    say(f"worker {process.pid} ended ({how}); the others go on with its trial")
            time.sleep(POLL_SECONDS)
    look()
