"""Interrupts, a lock on the run folder, and the stop of a run that diverges."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from generalist.core.errors import RunError, UserError
from generalist.distributed import ranks
from generalist.training.learner import Learner


class Interrupted(Exception):
    """Stopped by a signal after a complete step, with the state saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class StoppedEarly(Exception):
    """Stopped by a callback at the end of an epoch, as if training ended there."""


class InUse(UserError):
    """The run folder belongs to another process at the moment."""


class Interrupts:
    """Collects SIGINT and SIGTERM so that the loop can finish its step; a second SIGINT stops at once."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def agreed(self, *, epoch_ended: bool) -> int | None:
        """The signal that all ranks stop for, if any; several ranks agree on it only at the end of an epoch."""
        if ranks.world() == 1:
            return self.signum
        return next((signum for signum in ranks.all_gather(self.signum) if signum), None) if epoch_ended else None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.signum == signal.SIGINT == signum:
            raise KeyboardInterrupt
        self.signum = signum


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Collect signals inside, and restore the handlers at the end. Outside the main thread nothing is collected."""
    collected = Interrupts()
    before = {}
    try:
        for signum in (signal.SIGINT, signal.SIGTERM):
            before[signum] = signal.signal(signum, collected)
    except ValueError:  # not the main thread
        pass
    try:
        yield collected
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def sole_owner(lock: Path) -> Iterator[None]:
    """Lock the folder of this file, so that a second process is refused. The lock ends with the process."""
    folder = lock.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file: TextIO = open(lock, "a+")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"{folder} cannot be used as a run folder: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise InUse(
                f"{folder} is in use by process {owner}; wait for it or give another folder", command="--out FOLDER"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def stop_if_diverged(learner: Learner, *, bad_steps: int, step: int) -> None:
    """End the run after `bad_steps` of them in a row. They are not applied: the parameters are the last good ones."""
    if learner.bad_steps >= bad_steps:
        raise RunError(
            f"learner {learner.name!r} diverged: {learner.bad_steps} steps in a row up to step {step} had a loss or"
            " gradient that is not finite or far too large; its last good state is kept in checkpoints/."
            " Try a lower learning rate, clip_norm or precision: float32"
        )
