"""What holds for every case: it ends in time, with a known exit code, in few and short lines, without a traceback."""

import contextlib
import faulthandler
import io
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from generalist.cli.main import main

SECONDS = 20
MOST_LINES, LONGEST = 25, 1000
CODES = (0, 1, 2, 130)


class Failure(Exception):
    """What must not happen."""


class Hang(BaseException):
    """Not an Exception: nothing on the way may take it for one of its own."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def warnings(self) -> frozenset[str]:
        return frozenset(line for line in self.err.splitlines() if line.startswith("warning: "))


def stream(seed: int, kind: str, index: int) -> random.Random:
    """The randomness of one case, which is all that is needed to see it again."""
    return random.Random(f"{seed}/{kind}/{index}")


@contextlib.contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    """A case that computes longer fails, however busy the machine is; one that is stuck ends the process."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Hang("".join(traceback.format_stack(frame)[-3:]))

    before = signal.signal(signal.SIGPROF, late)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except Hang as hang:
        raise Failure(f"not done after {seconds} s of computing:\n{hang}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)


def command(arguments: list[str]) -> Outcome:
    """`generalist …` in this process, looked at in every way that does not depend on what was asked for."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = sys.argv
    sys.argv = ["generalist", *arguments]
    code: Any = None
    try:
        with in_time(), warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.simplefilter("always", UserWarning)  # every case is warned, not the first alone
            main()
    except SystemExit as stopped:
        code = stopped.code or 0
    except Failure:
        raise
    except BaseException:
        raise Failure(traceback.format_exc(limit=-6)) from None
    finally:
        sys.argv = before
    texts = []
    for captured in (out, err):
        captured.flush()
        texts.append(captured.buffer.getvalue().decode(errors="replace"))  # type: ignore[attr-defined]
    outcome = Outcome(code if isinstance(code, int) else 1, *texts)
    _check(outcome)
    return outcome


def _check(outcome: Outcome) -> None:
    lines = outcome.err.splitlines()
    if outcome.code not in CODES:
        raise Failure(f"exit code {outcome.code}: {outcome.err[:500]}")
    if "Traceback (most recent call last)" in outcome.err:
        raise Failure(outcome.err[-1500:])
    if len(lines) > MOST_LINES or any(len(line) > LONGEST for line in lines):
        raise Failure(f"{len(lines)} lines, the longest of {max(map(len, lines))} characters: {outcome.err[:500]}")
    if outcome.code and not [line for line in lines if line.startswith("error: ")]:
        raise Failure(f"exit code {outcome.code} without a word: {outcome.err[:500]!r}")


def calm(function: Callable[[], Any]) -> Any:
    """A call outside the command line; whatever it raises that no caller could expect is a failure."""
    try:
        with in_time():
            return function()
    except Failure:
        raise
    except Exception:
        raise Failure(traceback.format_exc(limit=-6)) from None
