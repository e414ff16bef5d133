"""How far a long attack is, for whoever watches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Watcher = Callable[[float], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_loops: ContextVar[tuple[float, float]] = ContextVar("loops", default=(0.0, 1.0))


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Attacks inside tell the watcher which share of their steps, 0 to 1, is behind them."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def track(turns: Sequence[T]) -> Iterator[T]:
    """The turns of a loop, which may run inside another one: each stands for an equal share of its outer turn."""
    watcher = _watcher.get()
    if watcher is None:
        yield from turns
        return
    begin, span = _loops.get()
    share = span / max(len(turns), 1)
    for number, turn in enumerate(turns):
        watcher(begin + number * share)
        _loops.set((begin + number * share, share))
        try:
            yield turn
        finally:
            _loops.set((begin, span))
