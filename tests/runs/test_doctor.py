"""What a recipe would cost, against what it does cost.

Time is counted, not measured: a clock that goes on with the work done tells the same on any machine.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from generalist.recipes.catalogue import load_recipe
from generalist.report.tables import probe_table
from generalist.runs import doctor
from generalist.runs.doctor import estimate, examine
from generalist.runs.train import train

CHANGES = [
    "training.epochs=4", "data.limit=320", "model.width=12", "validation.every_epochs=4", "validation.images=32",
]  # fmt: skip
SPEED = 1e8
"""Of the machine that the clock stands for: multiplications and additions of convolutions and matrices per second."""


class Work(TorchDispatchMode):
    """A clock in seconds that goes on with every convolution and matrix product."""

    seconds = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        counted: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        if counted is not None:
            self.seconds += counted(*args, **(kwargs or {}), out_val=result) / SPEED
        return result


@pytest.fixture(autouse=True)
def _by_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Work() as work:
        for clock in ("perf_counter", "monotonic"):
            monkeypatch.setattr(time, clock, lambda: work.seconds)
        monkeypatch.setattr(doctor, "PROBE_SECONDS", 1.0)
        yield


def test_the_estimate_is_of_the_right_order(tmp_path: Path) -> None:
    recipe = load_recipe("digits-generalist-t", CHANGES)
    guess = estimate(recipe)
    real = train(recipe, out=tmp_path / "run").summary["seconds"]
    assert real / 1.5 < guess["total_seconds"] < real * 1.5
    assert guess["total_seconds"] == pytest.approx(guess["training_seconds"] + guess["validation_seconds"], abs=0.11)


def test_validation_counts_the_attacks_that_a_trained_model_needs() -> None:
    short = [change for change in CHANGES if not change.startswith("validation")]
    few = estimate(load_recipe("digits-nt", [*short, "validation.steps=1"]))
    many = estimate(load_recipe("digits-nt", [*short, "validation.steps=40"]))
    assert many["validation_seconds"] > 5 * few["validation_seconds"]


def test_memory_parameters_and_steps() -> None:
    recipe = load_recipe("digits-at", CHANGES)
    guess = estimate(recipe)
    assert 50 < guess["peak_memory_mib"] < 50_000
    assert guess["steps"] == 4 * 5
    assert guess["parameters"] > 1000
    assert guess["cost_in_at"] == 1.0
    assert guess["step_seconds"]["linf"] > 0


def test_robust_steps_cost_more_than_natural_ones() -> None:
    steps = estimate(load_recipe("digits-generalist-d-natural", CHANGES))["step_seconds"]
    assert steps["linf"] > 3 * steps["natural"]


def test_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GENERALIST_DATA", str(tmp_path))
    facts = examine()
    assert facts["torch"] == torch.__version__
    assert facts["data_root"] == str(tmp_path)
    assert facts["data"]["digits"] == "1438 train and 359 test images"
    assert facts["data"]["cifar10"] == "not found; train --download fetches it"
    assert facts["data"]["imagenet"] == "not found; get it by hand"
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "MNIST" / "raw" / f"{name}-ubyte").write_bytes(b"broken")
    assert examine()["data"]["mnist"].startswith("unusable: ")


def test_the_estimate_counts_what_is_left_and_says_what_is_trained(tmp_path: Path) -> None:
    """From an existing model a late recipe has only its last epochs, and none of linf's, to do."""
    late = [*CHANGES, "training.epochs=10"]
    whole = estimate(load_recipe("digits-generalist-late-d", late))
    at = train(load_recipe("digits-at", [*CHANGES, "training.epochs=1"]), out=tmp_path / "at")
    rest = estimate(load_recipe("digits-generalist-late-d", [*late, f"init.from={at.folder}"]))
    steps = 2 * whole["steps"] / 10
    assert rest["training_seconds"] == pytest.approx(rest["step_seconds"]["natural"] * steps, rel=0.3, abs=0.06)
    assert rest["training_seconds"] < 0.1 * whole["training_seconds"]
    rows = [line for line in _printed(probe_table(whole)) if " trains " in line]
    assert ["linf trains everything, epochs 1–8" in rows[0], "natural trains conv5, bn5, fc (" in rows[1]] == [
        True,
        True,
    ]


def _printed(table: Table) -> list[str]:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()
