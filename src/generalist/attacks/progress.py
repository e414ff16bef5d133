"""The progress of a long attack."""

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
    """Report the progress of the attacks inside the `with` block.

    Args:
        watcher: Called with the share of the steps done, 0 to 1, at the start of every step.

    Returns:
        A context manager.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> with attacks.watched(print):
        ...     x_adv = attacks.pgd(model, x, y, threat="linf:8/255", steps=4)
        0.0
        0.25
        0.5
        0.75
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def track(turns: Sequence[T]) -> Iterator[T]:
    """Iterate, and report progress. In nested loops each turn stands for an equal share of the outer turn."""
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
