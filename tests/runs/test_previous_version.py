"""Run folders that version 0.1.0 wrote, before its modules were moved: evaluated, compared and resumed.

previous_version/finished     trained, and evaluated with pgd20 on 60 images
previous_version/interrupted  the same recipe, stopped by SIGTERM after 67 of 80 steps, in the middle of an epoch

Both are as they were written, less what is drawn or can be left out: figures, TensorBoard's file, older checkpoints.
"""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import generalist
from generalist.__main__ import main
from run_cases import T_MODELS, different_models, stopped_after, weights

PREVIOUS = Path(__file__).with_name("previous_version")
SETS = [
    "data.limit=480", "model.width=4", "training.batch_size=48", "training.epochs=8", "training.precision=float32",
    "validation.images=40", "validation.steps=2", "validation.every_epochs=2", "mixing.every_epochs=1",
    "mixing.decay=0.9", "learners.linf.objective.steps=2", "learners.l2.objective.steps=2",
    "learners.linf.optimizer.lr=0.1", "learners.natural.optimizer.lr=0.1", "learners.l2.optimizer.lr=0.1",
    # the radii that the setting had then
    "learners.linf.objective.threat=linf:3/10", "learners.l2.objective.threat=l2:1/2",
    "validation.threats=[linf:3/10, l2:1/2]",
]  # fmt: skip


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(PREVIOUS / name, folder / name))


def record(run: Path, suite: str = "pgd20") -> dict[str, Any]:
    return json.loads((run / "evaluations" / f"global-{suite}.json").read_text())


def command(*arguments: str) -> str:
    """`generalist …` in this process: what it prints."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("sys.argv", ["generalist", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert not stopped.value.code, arguments
    return out.getvalue()


def recipe() -> generalist.Recipe:
    """The recipe as this version composes it from the same command and the radii of that version."""
    return generalist.load_recipe("digits-generalist-t", SETS)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained to its end by this version, and evaluated as the finished one was."""
    folder = copied("interrupted", tmp_path_factory.mktemp("resumed"))
    generalist.train(recipe(), out=folder, resume=True)
    command("eval", str(folder), "--suite", "pgd20", "--images", "60", "--global", "--quiet")
    return folder


def test_its_files_are_read() -> None:
    run = generalist.Run(PREVIOUS / "finished")
    assert run.finished
    assert run.models == list(T_MODELS)
    assert run.summary["steps"] == 80
    assert [row["epoch"] for row in run.metrics if row["kind"] == "epoch"] == list(range(1, 9))
    assert run.recipe.learners == recipe().learners
    assert run.recipe.mixing == recipe().mixing
    assert not generalist.Run(PREVIOUS / "interrupted").finished


def test_it_is_evaluated(tmp_path: Path) -> None:
    """The clean verdicts are those that the previous version recorded."""
    run = copied("finished", tmp_path)
    (tmp_path / "short.yaml").write_text("name: short\nattacks: [{attack: apgd-ce, steps: 3}]\n")
    command("eval", str(run), "--suite", str(tmp_path / "short.yaml"), "--images", "60", "--learners", "--quiet")
    before, now = record(run), record(run, "short")
    assert now["per_image"]["natural"] == before["per_image"]["natural"]
    assert now["examples"] == before["examples"]
    assert now["model_sha256"] == before["model_sha256"]
    assert {path.name for path in (run / "evaluations").glob("*-short.json")} == {
        f"{name}-short.json" for name in T_MODELS
    }


def test_its_verdicts_are_kept(tmp_path: Path) -> None:
    """The same evaluation again: no image is attacked a second time."""
    run = copied("finished", tmp_path)
    files = sorted((run / "evaluations").glob("*.jsonl"))
    before, written = record(run), [path.stat().st_mtime_ns for path in files]
    assert len(files) == 2
    command("eval", str(run), "--suite", "pgd20", "--images", "60", "--global", "--quiet")
    assert record(run)["per_image"] == before["per_image"]
    assert sorted((run / "evaluations").glob("*.jsonl")) == files
    assert [path.stat().st_mtime_ns for path in files] == written


def test_it_is_compared_with_a_run_of_this_version(resumed: Path, tmp_path: Path) -> None:
    finished = copied("finished", tmp_path)
    found = generalist.compare([finished, resumed])
    assert (found.suite, found.data, found.images) == ("pgd20", "digits", 60)
    assert found.notes == ()
    assert [row.method for row in found.rows] == ["generalist-t"] * 2
    rows = found.record()["runs"]
    assert rows[0]["accuracy"]["natural"] == record(finished)["natural"]
    assert rows[0]["cost"] == generalist.Run(finished).summary["seconds"]
    for column, value in rows[0]["accuracy"].items():  # the same recipe, so the same accuracy to an image or two
        assert rows[1]["accuracy"][column] == pytest.approx(value, abs=4)
    table = command("compare", str(finished), str(resumed))
    assert str(record(finished)["natural"]) in table


def test_it_is_resumed_to_the_models_of_the_uninterrupted_run(resumed: Path) -> None:
    """To rounding: another CPU than the one that made the folders may sum in another order.

    The 13 steps that were left move every model by 0.06 and more; CPUs differ by less than 1e-6.
    """
    assert generalist.Run(resumed).summary["steps"] == 80
    for name in T_MODELS:
        ours, theirs = weights(resumed, name), weights(PREVIOUS / "finished", name)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            torch.testing.assert_close(
                ours[key], tensor, atol=1e-4, rtol=1e-3, msg=lambda m, n=name, k=key: f"{n} {k}: {m}"
            )
    rows, wanted = (generalist.Run(run).metrics for run in (resumed, PREVIOUS / "finished"))
    assert [(row["kind"], row["step"]) for row in rows] == [(row["kind"], row["step"]) for row in wanted]
    for row, other in zip(rows, wanted, strict=True):
        if row["kind"] == "epoch":
            assert row["redistributed"] == other["redistributed"]
            for learner, terms in other["train"].items():
                assert row["train"][learner] == pytest.approx(terms, rel=1e-3)


def test_interrupted_once_more_it_gives_the_same_bits(resumed: Path, tmp_path: Path) -> None:
    folder = copied("interrupted", tmp_path)
    stopped_after(recipe(), folder, 74, resume=True)
    generalist.train(recipe(), out=folder, resume=True)
    assert different_models(folder, resumed) == []
