"""Killed at random moments, again and again, in training and in evaluation; what comes out in the end is the same.

A few kills belong to every test run. `make kills` makes 200.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from run_cases import T_MODELS, different_models, forked_command

KILLS = int(os.environ.get("GENERALIST_KILLS", "6"))
SETS = ("data.limit=160", "model.width=4", "training.batch_size=32", "training.epochs=6", "mixing.every_epochs=1",
        "learners.linf.objective.steps=2", "learners.l2.objective.steps=2", "validation.images=20",
        "validation.steps=2", "validation.every_epochs=2", "training.checkpoint_minutes=0")  # fmt: skip
SUITE = """
name: short
attacks: [{attack: apgd-ce, steps: 30}, {attack: fab-t, steps: 20, targets: 2}, {attack: square, queries: 300}]
"""


def attempt(arguments: list[str], log: Path, *, kill_after: float | None) -> bool:
    """The command line in a forked process. Whether it came to its end before it was killed."""
    child = forked_command(arguments, log)
    deadline = float("inf") if kill_after is None else time.monotonic() + kill_after
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(ended[1])
    assert code in (0, -signal.SIGKILL), log.read_text(errors="replace")[-3000:]
    return code == 0


def until_killed(times: int, arguments: list[str], log: Path, *, whole: float, finished: Path, seed: int) -> int:
    """Start it again after every kill, to the end or until it was killed so often; then let it end."""
    moments, kills = random.Random(seed), 0
    while kills < times and not finished.exists():
        kills += not attempt(arguments, log, kill_after=moments.uniform(0, 0.8 * whole))
    assert attempt(arguments, log, kill_after=None)
    return kills


def train(out: Path) -> list[str]:
    sets = [part for change in SETS for part in ("--set", change)]
    return ["train", "digits-generalist-t", *sets, "--quiet", "--resume", "--out", str(out)]


@pytest.mark.timeout(3600)
def test_a_run_and_its_evaluation_survive_random_kills(tmp_path: Path) -> None:
    log, reference = tmp_path / "log", tmp_path / "reference" / "run"
    began = time.monotonic()
    assert attempt(train(reference), log, kill_after=None)
    training_seconds, kills, rounds = time.monotonic() - began, 0, 0
    while kills < KILLS // 2:
        out = tmp_path / f"killed-{rounds}" / "run"
        kills += until_killed(KILLS // 2 - kills, train(out), log, whole=training_seconds,
                              finished=out / "summary.json", seed=rounds)  # fmt: skip
        assert different_models(reference, out) == [], f"round {rounds} of training"
        assert not list(out.rglob("*.tmp"))
        rounds += 1

    suite = tmp_path / "short.yaml"
    suite.write_text(SUITE)
    measure = ["--suite", str(suite), "--batch-size", "16", "--learners", "--quiet"]
    began = time.monotonic()
    assert attempt(["eval", str(reference), *measure], log, kill_after=None)
    evaluation_seconds, kills, rounds = time.monotonic() - began, 0, 0
    while kills < KILLS // 2:
        out = tmp_path / f"killed-{rounds}" / "run"
        if not out.exists():
            assert attempt(train(out), log, kill_after=None)
        kills += until_killed(KILLS // 2 - kills, ["eval", str(out), *measure], log, whole=evaluation_seconds,
                              finished=out / "evaluations" / "l2-short.json", seed=rounds)  # fmt: skip
        for name in T_MODELS:
            ours, theirs = (json.loads((run / "evaluations" / f"{name}-short.json").read_text())
                            for run in (out, reference))  # fmt: skip
            assert ours["per_image"] == theirs["per_image"], f"round {rounds} of evaluation, {name}"
            assert ours["accuracy"] == theirs["accuracy"]
        rounds += 1
