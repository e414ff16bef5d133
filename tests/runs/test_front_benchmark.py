"""`benchmarks/fronts.py`: split work adds up to one record per seed, and the tables come from the records alone."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import generalist
from generalist.evaluation.front_records import read_front_record

SMALL = {
    "training.epochs": 3, "data.limit": 100, "model.width": 2, "validation.images": 10, "validation.steps": 1,
    "mixing.recalibrate_batches": 1,
}  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The script's `main` with arguments, its trainings made small; what it printed."""
    path = Path(__file__).parents[2] / "benchmarks" / "fronts.py"
    spec = importlib.util.spec_from_file_location("fronts_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    train, dial = generalist.train, generalist.dial
    monkeypatch.setattr(
        generalist, "train", lambda name, *, overrides, **rest: train(name, overrides={**overrides, **SMALL}, **rest)
    )
    monkeypatch.setattr(generalist, "dial", lambda run, **rest: dial(run, images=10, **rest))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        few = ("--images", "20", "--exported", "2", "--points", "3")
        common = ("digits", "--out", "out", "--suites", "pgd20", "--by", "learner", *few)
        monkeypatch.setattr(sys, "argv", ["fronts.py", *common, *arguments])
        capsys.readouterr()
        module.main()
        return capsys.readouterr().out

    return run


def test_work_in_parts_adds_up(bench: Any, tmp_path: Path) -> None:
    bench("--only", "at", "half50", "--records", "kept")
    assert sorted(path.name for path in (tmp_path / "out" / "digits").iterdir()) == ["at-s0", "half50-s0"]
    bench("--only", "at-eps50", "late-half", "--records", "kept")
    bench("--only", "half25", "--seeds", "1", "--records", "kept")
    assert sorted(path.name for path in (tmp_path / "kept").glob("*.json")) == ["digits-s0.json", "digits-s1.json"]
    first = read_front_record(tmp_path / "kept" / "digits-s0.json")
    assert (first.setting, first.data, first.split, first.images) == ("digits", "digits", "test", 20)
    groups = [model.group for model in first.models]
    assert groups[:3] == ["AT, ε swept", "half-half, β swept", "AT, ε swept"]
    assert set(groups[3:]) == {"generalist-late-half, dial by learner"}
    assert 1 <= len(groups[3:]) <= 2
    assert first.models[0].cost_in_at == 3 / 24, "three epochs, in runs of the 24 of the setting"
    assert first.models[3].chosen_by == "dial on validation (front, 2 spread evenly)"
    run = generalist.Run(tmp_path / "out" / "digits" / "at-s0")
    assert first.models[0].recipe_sha256 == run.identity
    assert first.models[0].record()["natural"] == run.record("pgd20")["natural"]

    bench("--only", "late-half", "--records", "kept", "--exported", "1")  # a dial replaces its points
    again = read_front_record(tmp_path / "kept" / "digits-s0.json")
    assert [model.group for model in again.models].count("generalist-late-half, dial by learner") == 1
    assert [model.name for model in again.models][:3] == ["at", "half50", "at-eps50"]

    shutil.rmtree(tmp_path / "out")
    printed = bench("--only", "--records", "kept")
    assert "seeds 0 1" in printed
    assert "half-half, β swept" in printed
    assert "the baseline AT, ε swept has no point with seed 1" in printed
    assert not (tmp_path / "out").exists()


def test_other_images_are_not_mixed_in(bench: Any, tmp_path: Path) -> None:
    bench("--only", "at")
    kept = tmp_path / "out" / "digits" / "records" / "digits-s0.json"
    before = json.loads(kept.read_text())
    with pytest.raises(SystemExit, match="different numbers of images: 20 and 10"):
        bench("--only", "at", "--images", "10")
    assert json.loads(kept.read_text()) == before
