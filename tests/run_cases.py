"""Whole runs made small, and what the tests of runs ask of them."""

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

import generalist
from generalist.cli.main import main
from generalist.recipes.schema import Recipe
from generalist.report import figures
from generalist.report.console import Silent
from generalist.runs.experiment import Experiment
from generalist.runs.train import Run
from generalist.training.guards import Interrupted, Interrupts
from generalist.training.learner import Learner
from generalist.training.loop import fit
from generalist.training.state import TrainState

T_MODELS = ("global", "linf", "natural", "l2")
"""The models of a run of Generalist-T."""


def weights(run: Run | str | Path, name: str = "global") -> dict[str, Tensor]:
    folder = run.folder if isinstance(run, Run) else Path(run)
    return load_file(folder / "models" / f"{name}.safetensors")


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def different_models(a: Run | Path, b: Run | Path, names: Iterable[str] = T_MODELS) -> list[str]:
    """The models that are not the same bit for bit in two runs."""
    return [name for name in names if not same(weights(a, name), weights(b, name))]


class Quiet:
    """Events of the training loop: nothing is recorded, nothing is saved."""

    def tick(self, state: TrainState) -> None:
        pass

    def epoch_ended(self, state: TrainState) -> None:
        pass

    def save_due(self, state: TrainState) -> bool:
        return False


def fit_quietly(experiment: Experiment, *, events: Quiet | None = None, **changes: Any) -> Experiment:
    """The library's own training loop without a run folder."""
    given: dict[str, Any] = {
        "feed": experiment.feed, "seed": experiment.recipe.seed, "redistribute_": experiment.redistribute_,
        "events": events or Quiet(), "checkpoints": Path("unused"), "interrupts": Interrupts(), "bad_steps": 3,
    }  # fmt: skip
    fit(experiment.state, experiment.plan, **(given | changes))
    return experiment


@contextmanager
def rendered_figures() -> Iterator[None]:
    """Runs trained within draw their figures to the last pixel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "Figure", Figure)
        yield


def stopped_after(recipe: Recipe, out: Path, step: int, *, resume: bool = False) -> None:
    """Train until `step`, then stop as by a signal."""

    class Stop(Silent):
        def advance(self, done: int, total: int, *, share: float | None = None) -> None:
            if done == step - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        generalist.train(recipe, out=out, resume=resume, reporter=Stop())


def forked(function: Callable[[], object]) -> int:
    """A copy of this process that calls the function and ends; its process id."""
    for slow in ("torch._dynamo", "torch.utils.tensorboard"):  # else each copy imports them for itself
        importlib.import_module(slow)
    child = os.fork()
    if child:
        return child
    try:
        function()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def forked_command(
    arguments: Iterable[str],
    log: Path,
    *,
    folder: Path | None = None,
    first: Callable[[], object] | None = None,
    **environment: str,
) -> int:
    """`generalist …` in a copy of this process, which has nothing left to import; its process id.

    What it says is added to the log. It runs in the folder, and calls `first` before anything else.
    """

    def command() -> None:
        sys.settrace(None)  # a copy's coverage is not kept
        if folder is not None:
            os.chdir(folder)
        if first is not None:
            first()
        os.environ.update(environment)
        sys.argv = ["generalist", *arguments]
        with log.open("a") as sys.stdout:
            sys.stderr = sys.stdout
            for stream in (1, 2):
                os.dup2(sys.stdout.fileno(), stream)
            try:
                main()
            except SystemExit as stopped:
                sys.stdout.flush()
                os._exit(int(stopped.code or 0))

    return forked(command)


def exit_code(child: int) -> int:
    """Of a process of ours, once it has ended; minus the signal where one has ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(what: str, occasion: int, function: Callable[[], object], *, told: str) -> None:
    """The function in a process that is killed by SIGKILL, always in the same place.

    Args:
        what: "step", before a learner's step; "redistribution", after it; a folder of the run ("checkpoints",
            "models"), after a file was written for it and before it is in place.
        occasion: on which of these, counted from 1.
        function: what the process does.
        told: what to say where the process ended before.
    """

    def doomed() -> None:
        left = occasion

        def die_in_turn() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        step, redistribute_, replace = Learner.step, Experiment.redistribute_, os.replace

        def stepped(*args: Any, **options: Any) -> Any:
            die_in_turn()
            return step(*args, **options)

        def redistributed(*args: Any) -> None:
            redistribute_(*args)
            die_in_turn()

        def replaced(source: Any, path: Any) -> None:
            if what in Path(path).parts:
                die_in_turn()
            replace(source, path)

        patch = pytest.MonkeyPatch()
        if what == "step":
            patch.setattr(Learner, "step", stepped)
        elif what == "redistribution":
            patch.setattr(Experiment, "redistribute_", redistributed)
        else:
            patch.setattr(os, "replace", replaced)
        function()

    assert exit_code(forked(doomed)) == -signal.SIGKILL, f"not killed in {told}"


def wait_for(path: Path, process: Popen[str], seconds: float = 120) -> None:
    """Until a file of that name or pattern is there; the process must not end before."""
    deadline = time.monotonic() + seconds
    while not any(path.parent.glob(path.name)):
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.01)
