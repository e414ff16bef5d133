"""The command line in this process, and one finished run to look at."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import SMALL, Cli, Outcome
from report_cases import CORRUPTIONS, page_data

from generalist.cli.main import main
from generalist.report.page.measured import corruptions_view
from generalist.report.page.rendering import render
from generalist.runs.dial import dial as dial_runs
from generalist.runs.evaluate import evaluate
from generalist.runs.folder import Run
from generalist.runs.report import write_report
from generalist.runs.train import train
from run_cases import rendered_figures


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """`generalist …` in an empty folder, as if piped."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["generalist", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished Generalist-T run; not to be written to."""
    with rendered_figures():
        return train("digits-generalist-t", overrides=list(SMALL), out=tmp_path_factory.mktemp("runs") / "small-t")


@pytest.fixture
def copied(trained: Run, tmp_path: Path) -> Path:
    """A copy of that run to do harm to."""
    return Path(shutil.copytree(trained.folder, tmp_path / "small-t"))


@pytest.fixture(scope="session")
def reported(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that was attacked and dialled, and of a second one that was only trained."""
    place = tmp_path_factory.mktemp("reported")
    attacked, other = (Run(shutil.copytree(trained.folder, place / name)) for name in ("attacked", "other"))
    found = dial_runs(attacked, points=6, images=20)
    found.keep(chosen={**found.pick().record(), "rule": "most", "red_flags": []})
    evaluate(attacked, images=30)
    with pytest.warns(UserWarning, match="has no record of suite pgd20"):
        page = write_report([attacked, other], place / "page.html", images=20)
    data = page_data(page)
    data["runs"][0]["ood"] = corruptions_view(CORRUPTIONS)
    page.write_text(render(data))
    return page


@pytest.fixture
def npz(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """An .npz of 60 training and 30 test images of three classes, with the given arrays instead."""

    def write(**changed: Any) -> Path:
        random = np.random.default_rng(0)
        arrays: dict[str, Any] = {
            "x_train": random.integers(0, 256, (60, 1, 8, 8), dtype=np.uint8),
            "y_train": np.arange(60) % 3,
            "x_test": random.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8),
            "y_test": np.arange(30) % 3,
            "classes": np.array(["cat", "dog", "eel"]),
        }
        path = tmp_path_factory.mktemp("arrays") / "data.npz"
        np.savez(path, **(arrays | changed))
        return path

    return write


@pytest.fixture(scope="session")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite of two PGD steps."""
    path = tmp_path_factory.mktemp("suites") / "fast.yaml"
    path.write_text("attacks: [{attack: pgd, steps: 2, label: PGD2}]\n")
    return path
