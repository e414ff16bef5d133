"""Progress in a pipe and in a terminal."""

import io
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rich.console import Console

from generalist.evaluation import Ended, Standing
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


def test_a_share_of_the_work_weighs_more_than_the_steps(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    with lines.bar("digits-t", 400, 1000, share=0.1):
        clock.now += 20
        lines.advance(600, 1000, share=0.2)
    assert capsys.readouterr().err == "digits-t: 600/1000, 2m40s left\n"


STAGE = Standing("linf:8/255", "APGD_t", 2, 8, 250, 500, 200.0)


def test_a_stage_tells_where_it_is_and_what_it_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    with lines.bar("theirs", 0, 1000):
        lines.stage(Standing("", "natural", 0, 8, 1000, 1000, None, Ended(88.3, 883, 0.0)))
        clock.now += 1
        lines.stage(STAGE)
        clock.now += 10
        lines.stage(STAGE)
        lines.stage(replace(STAGE, ended=Ended(41.2, 412, 12.3)))
        lines.stage(replace(STAGE, number=8, ended=Ended(41.2, None, 12.3)))
    assert capsys.readouterr().err.splitlines() == [
        "theirs: 88.3 % right without an attack, 883 of 1000 images left",
        "theirs: linf:8/255 2/8 APGD_t: 250/500 images; about 3m20s left",
        "theirs: linf:8/255 2/8 APGD_t: 41.2 % robust, 412 images left, 12s; about 3m20s left",
        "theirs: linf:8/255 8/8 APGD_t: 41.2 % robust, 12s",
    ]


def test_the_terminal_keeps_what_a_stage_left_above_the_bar() -> None:
    file = io.StringIO()
    terminal = Terminal(Console(file=file, force_terminal=True, width=140))
    with terminal.bar("theirs", 0, 1000):
        terminal.stage(STAGE)
        terminal.stage(replace(STAGE, ended=Ended(41.2, 412, 12.3)))
    drawn = file.getvalue()
    for text in ("linf:8/255 2/8 APGD_t", "250/500", "about 3m20s left", "41.2 % robust, 412 images left, 12s"):
        assert text in drawn


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
