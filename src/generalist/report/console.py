"""What a person sees while something runs: bars and tables in a terminal, plain lines in a pipe."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Reporter(Protocol):
    def say(self, text: str) -> None: ...
    def bar(self, title: str, done: int, total: int) -> Any: ...
    def advance(self, done: float, total: int) -> None: ...
    def stage(self, name: str, done: float, total: int) -> None: ...
    def epoch(self, epoch: int, epochs: int, text: str) -> None: ...
    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None: ...


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        pass

    @contextmanager
    def bar(self, title: str, done: int, total: int) -> Iterator[None]:
        yield

    def advance(self, done: float, total: int) -> None:
        pass

    def stage(self, name: str, done: float, total: int) -> None:
        pass

    def epoch(self, epoch: int, epochs: int, text: str) -> None:
        pass

    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None:
        pass


class Lines(Silent):
    """Plain lines for a pipe or a log file, with the time left: the first soon, then ever fewer."""

    def __init__(self, *, first_seconds: float = 2.0, most_seconds: float = 10.0) -> None:
        self._first, self._most = first_seconds, most_seconds
        self._title, self._note, self._stage, self._begun, self._begun_at = "", "", "", 0.0, 0.0
        self._wait, self._last = first_seconds, 0.0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, title: str, done: int, total: int) -> Iterator[None]:
        self._title, self._note, self._stage, self._begun = title, "", "", done
        self._begun_at = self._last = time.monotonic()
        self._wait = self._first
        yield

    def advance(self, done: float, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= self._wait and done > self._begun:
            self._last, self._wait = now, min(self._most, self._wait * 1.5)
            left = (now - self._begun_at) / (done - self._begun) * (total - done)
            self.say(f"{self._title}: {int(done)}/{total}, {duration(left)} left{self._note}")

    def stage(self, name: str, done: float, total: int) -> None:
        if name != self._stage:  # the time left is that of this stage
            self._stage, self._note, self._begun, self._begun_at = name, f" of {name}", done, time.monotonic()
        self.advance(done, total)

    def epoch(self, epoch: int, epochs: int, text: str) -> None:
        self._note = f", epoch {epoch}/{epochs} {text}"

    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None:
        for name, scores in models.items():
            self.say(f"epoch {epoch} {name}: {describe(scores)}")


class Terminal:
    """A bar with the time left, and a coloured line for each validation above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: Any = None
        self._stage = ""

    def say(self, text: str) -> None:
        self._print(escape(text))

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, done: int, total: int) -> Iterator[None]:
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as self._progress:
            self._task = self._progress.add_task(escape(title), total=total, completed=done, note="")
            yield
        self._progress = None

    def advance(self, done: float, total: int) -> None:
        if self._progress:
            self._progress.update(self._task, completed=done, total=total)

    def stage(self, name: str, done: float, total: int) -> None:
        if self._progress:
            if name != self._stage:
                self._stage = name
                self._progress.reset(self._task, total=total, completed=int(done), note=escape(name))
            self.advance(done, total)

    def epoch(self, epoch: int, epochs: int, text: str) -> None:
        if self._progress:
            self._progress.update(self._task, note=f"epoch {epoch}/{epochs}  {text}")

    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None:
        for name, scores in models.items():
            colour = "green" if name == "global" else "cyan"
            self._print(f"[dim]epoch {epoch:>3}[/]  [{colour}]{name:<10}[/] {escape(describe(scores))}")


def describe(scores: Mapping[str, Any]) -> str:
    robust = "  ".join(f"{threat} {value:.1f}" for threat, value in scores["robust"].items())
    return f"natural {scores['natural']:.1f}  {robust}".strip()


def make_reporter(*, quiet: bool) -> Reporter:
    """For standard error: that is where progress goes, so that results can be piped."""
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return Terminal(console) if console.is_terminal else Lines()


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
