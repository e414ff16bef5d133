"""Imports that take seconds are made when a command needs them, and an interrupt meanwhile ends the process quietly."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def importing() -> Iterator[None]:
    """Inside, SIGINT ends the process at once; outside the main thread nothing changes.

    An exception would not do: a half-imported extension turns it into another.
    """
    try:
        before = signal.signal(signal.SIGINT, _leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
