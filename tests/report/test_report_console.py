"""Progress in a pipe and in a terminal."""

import io
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rich.console import Console

from generalist.report import console
from generalist.report.console import Lines, Terminal, duration, make_reporter

SCORES = {"global": {"natural": 91.25, "robust": {"linf:8/255": 40.0, "l2:1/2": 55.5}}}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_lines_come_soon_then_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    times = []
    lines = Lines()
    with lines.bar("digits-at", 0, 2000):
        for step in range(1, 2001):
            clock.now += 0.1
            lines.advance(step, 2000)
            if capsys.readouterr().err:
                times.append(clock.now - 100)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert gaps[0] == pytest.approx(2, abs=0.11)
    assert all(b >= a - 0.11 for a, b in pairwise(gaps))
    assert gaps[-1] == pytest.approx(10, abs=0.11)
    assert len(times) < 30


def test_a_line_says_how_far_it_is_and_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    with lines.bar("digits-at", 500, 1000):
        clock.now += 1
        lines.advance(510, 1000)
        lines.epoch(3, 60, "loss linf 0.512")
        clock.now += 49
        lines.advance(600, 1000)
    assert capsys.readouterr().err == "digits-at: 600/1000, 3m20s left, epoch 3/60 loss linf 0.512\n"


def test_validation_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().validation(5, SCORES)
    assert capsys.readouterr().err == "epoch 5 global: natural 91.2  linf:8/255 40.0  l2:1/2 55.5\n"


def test_the_terminal_draws_a_bar_and_keeps_what_was_said() -> None:
    file = io.StringIO()
    terminal = Terminal(Console(file=file, force_terminal=True, width=140))
    with terminal.bar("runs/[a]", 0, 40):
        terminal.advance(10, 40)
        terminal.epoch(1, 4, "loss linf 0.5")
        terminal.validation(1, SCORES)
        terminal.say("resumed [bold]/x at step 3")
        terminal.advance(40, 40)
    drawn = file.getvalue()
    assert "\x1b[" in drawn
    for text in ("runs/[a]", "40/40", "left", "epoch 1/4", "loss linf 0.5", "resumed [bold]/x at step 3"):
        assert text in drawn
    assert "natural 91.2" in drawn


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = make_reporter(quiet=True)
    with reporter.bar("x", 0, 1):
        reporter.say("something")
        reporter.advance(1, 1)
        reporter.epoch(1, 1, "")
        reporter.validation(1, SCORES)
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_lines() -> None:
    assert isinstance(make_reporter(quiet=False), Lines)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (61, "1m01s"), (7260, "2h01m")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
