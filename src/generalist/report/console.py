"""What a person sees while something runs: bars and tables in a terminal, plain lines in a pipe."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from generalist.evaluation import Standing


class Reporter(Protocol):
    """`share` is how much of the work is done where steps differ in cost; the share of the steps if not given."""

    def say(self, text: str) -> None: ...
    def bar(self, title: str, done: int, total: int, *, share: float | None = None) -> Any: ...
    def advance(self, done: float, total: int, *, share: float | None = None) -> None: ...
    def stage(self, standing: "Standing") -> None: ...
    def epoch(self, epoch: int, epochs: int, text: str) -> None: ...
    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None: ...


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        pass

    @contextmanager
    def bar(self, title: str, done: int, total: int, *, share: float | None = None) -> Iterator[None]:
        yield

    def advance(self, done: float, total: int, *, share: float | None = None) -> None:
        pass

    def stage(self, standing: "Standing") -> None:
        pass

    def epoch(self, epoch: int, epochs: int, text: str) -> None:
        pass

    def validation(self, epoch: int, models: Mapping[str, Mapping[str, Any]]) -> None:
        pass


class _Watch:
    """The time left, by the share of the work that was done since it began."""

    def __init__(self, share: float) -> None:
        self._share, self._began = share, time.monotonic()

    def left(self, share: float) -> float | None:
        done = share - self._share
        return (time.monotonic() - self._began) / done * (1 - share) if done > 0 else None


def _share(done: float, total: int, share: float | None) -> float:
    return done / max(total, 1) if share is None else share


class Lines(Silent):
    """Plain lines for a pipe or a log file, with the time left: the first soon, then ever fewer."""

    def __init__(self, *, first_seconds: float = 2.0, most_seconds: float = 10.0) -> None:
        self._first, self._most = first_seconds, most_seconds
        self._title, self._note, self._watch = "", "", _Watch(0.0)
        self._wait, self._last = first_seconds, 0.0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, title: str, done: int, total: int, *, share: float | None = None) -> Iterator[None]:
        self._title, self._note, self._watch = title, "", _Watch(_share(done, total, share))
        self._wait, self._last = self._first, time.monotonic()
        yield

    def _due(self, left: float | None) -> bool:
        now = time.monotonic()
        if left is None or now - self._last < self._wait:
            return False
        self._last, self._wait = now, min(self._most, self._wait * 1.5)
        return True

    def advance(self, done: float, total: int, *, share: float | None = None) -> None:
        left = self._watch.left(_share(done, total, share))
        if left is not None and self._due(left):
            self.say(f"{self._title}: {int(done)}/{total}, {duration(left)} left{self._note}")

    def stage(self, standing: "Standing") -> None:
        if standing.ended or self._due(standing.seconds_left):
            self.say(f"{self._title}: {stage_line(standing)}")

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
        self._title, self._watch = "", _Watch(0.0)

    def say(self, text: str) -> None:
        self._print(escape(text))

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, done: int, total: int, *, share: float | None = None) -> Iterator[None]:
        self._title, self._watch = title, _Watch(_share(done, total, share))
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as self._progress:
            self._task = self._progress.add_task(escape(title), total=total, completed=done, note="", left="")
            yield
        self._progress = None

    def advance(self, done: float, total: int, *, share: float | None = None) -> None:
        if self._progress:
            left = _about(self._watch.left(_share(done, total, share)))
            self._progress.update(self._task, completed=done, total=total, left=left)

    def stage(self, standing: "Standing") -> None:
        if standing.ended:
            self._print(f"[cyan]{escape(self._title)}[/]  {escape(stage_line(standing))}")
        if self._progress:
            place, left = _place(standing), _about(standing.seconds_left)
            done, total = standing.done, standing.total
            self._progress.update(self._task, completed=done, total=total, note=escape(place), left=left)

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


def stage_line(standing: "Standing") -> str:
    """linf:8/255 2/8 APGD_t: 41.2 % robust, 412 images left, 12s; about 3m20s left"""
    ended, left = standing.ended, _about(standing.seconds_left)
    if ended is None:
        return f"{_place(standing)}: {int(standing.done)}/{standing.total} images; {left}"
    if standing.number == 0:
        return f"{ended.robust:.1f} % right without an attack, {ended.left} of {standing.total} images left"
    images = "" if ended.left is None else f", {ended.left} images left"
    last = standing.number == standing.stages
    more = f"; {left}" if left and not last else ""
    return f"{_place(standing)}: {ended.robust:.1f} % robust{images}, {duration(ended.seconds)}{more}"


def _place(standing: "Standing") -> str:
    return f"{standing.threat} {standing.number}/{standing.stages} {standing.stage}".strip()


def _about(left: float | None) -> str:
    return "" if left is None else f"about {duration(left)} left"


def make_reporter(*, quiet: bool) -> Reporter:
    """For standard error: that is where progress goes, so that results can be piped."""
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return Terminal(console) if console.is_terminal else Lines()


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours / 24:,.0f} days"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
