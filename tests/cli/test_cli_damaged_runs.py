"""Run folders that were edited, damaged or mixed up: every file is checked before it is believed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_cases import SMALL, TINY, Cli, Outcome
from safetensors.torch import load_file

import generalist
from generalist.runs.folder import Run

TRAIN = ("train", "digits-generalist-t", *TINY, "--quiet", "--resume", "--out")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run from another seed."""
    out = tmp_path_factory.mktemp("runs") / "other"
    return generalist.train("digits-generalist-t", overrides=[*SMALL, "seed=1"], out=out)


@pytest.fixture
def cut(copied: Path) -> Path:
    """A run that stopped before its end: its last two checkpoints are there, its summary is not."""
    (copied / "summary.json").unlink()
    return copied


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new, 1))


def refused(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 2, outcome.err
    (line,) = outcome.errors
    for fragment in fragments:
        assert fragment in line
    assert outcome.out == ""


def same_models(a: Path, b: Path) -> bool:
    return all(
        torch.equal(tensor, load_file(b / "models" / f"{name}.safetensors")[key])
        for name in ("global", "linf", "natural", "l2")
        for key, tensor in load_file(a / "models" / f"{name}.safetensors").items()
    )


def newest(run: Path) -> Path:
    return sorted((run / "checkpoints").glob("*.json"))[-1]


def is_mentioned_and_passed_over(cli: Cli, run: Path, trained: Run, *fragments: str) -> None:
    """The checkpoint before it is used, and the run ends as it would have."""
    outcome = cli(*TRAIN, run)
    assert outcome.code == 0, outcome.err
    for fragment in ("warning: checkpoint", *fragments, "trying the one before it"):
        assert fragment in outcome.err
    assert same_models(run, trained.folder)


@pytest.mark.parametrize(
    "edit", [('"step": 9', '"step": 8'), ('"remaining": ', '"remaining": 1'), ('"seconds": ', '"seconds": 1')]
)
def test_an_edited_checkpoint(cli: Cli, cut: Path, trained: Run, edit: tuple[str, str]) -> None:
    replace(newest(cut), *edit)
    is_mentioned_and_passed_over(cli, cut, trained, newest(cut).stem, "changed since it was written")


def test_a_checkpoint_of_another_run(cli: Cli, cut: Path, trained: Run, other: Run) -> None:
    for path in (other.folder / "checkpoints").glob("step-000000009.*"):
        shutil.copy(path, cut / "checkpoints")
    is_mentioned_and_passed_over(cli, cut, trained, "not of this run: it was made with another recipe")


def test_a_checkpoint_under_another_name(cli: Cli, cut: Path, trained: Run) -> None:
    for path in (cut / "checkpoints").glob("step-000000006.*"):
        shutil.copy(path, path.with_name(f"step-000000009{path.suffix}"))
    is_mentioned_and_passed_over(cli, cut, trained, "it is that of step 6")


def test_checkpoints_of_an_older_version_are_taken_up_with_a_warning(cli: Cli, cut: Path, trained: Run) -> None:
    for path in (cut / "checkpoints").glob("*.json"):
        values = json.loads(path.read_text())
        old = {key: value for key, value in values.items() if key not in ("digest", "owner")} | {"format": 1}
        path.write_text(json.dumps(old))
    outcome = cli(*TRAIN, cut)
    assert outcome.code == 0, outcome.err
    assert "older version" in outcome.err
    assert same_models(cut, trained.folder)


def test_data_that_changed_between_two_starts(cli: Cli, npz: Callable[..., Path], tmp_path: Path) -> None:
    data = npz()
    start = ["train", "digits-nt", *TINY, "--set", "data.name=npz", "--set", f"data.root={data}"]
    assert cli(*start, "--out", "run", "--quiet").code == 0
    (tmp_path / "run" / "summary.json").unlink()
    arrays = dict(np.load(data))
    arrays["x_train"][7] = 255 - arrays["x_train"][7]
    np.savez(data, **arrays)
    refused(cli(*start, "--out", "run", "--quiet", "--resume"), "not of this run: it was made with another data")


def test_an_edited_score(cli: Cli, cut: Path) -> None:
    """The best so far would never be beaten again."""
    card = json.loads((cut / "models" / "global.json").read_text())
    score = card["extra"]["selection"]["score"]
    replace(cut / "models" / "global.json", f'"score": {score}', '"score": 999.0')
    refused(cli(*TRAIN, cut), "models/global.json was changed since the model was saved")


def test_a_damaged_summary_is_made_anew(cli: Cli, copied: Path, trained: Run) -> None:
    replace(copied / "summary.json", '"steps": 9', '"steps": 99')
    outcome = cli(*TRAIN, copied)
    assert outcome.code == 0, outcome.err
    assert "summary.json was changed since it was written" in outcome.err
    assert Run(copied).summary["steps"] == trained.summary["steps"]
    assert Run(copied).summary["selected"] == trained.summary["selected"]


def test_a_summary_without_its_digest(cli: Cli, copied: Path, fast: Path) -> None:
    assert cli("eval", copied, "--suite", fast, "--global", "--quiet").code == 0
    summary = json.loads((copied / "summary.json").read_text())
    del summary["digest"]
    (copied / "summary.json").write_text(json.dumps({**summary, "selected_by": "test"}))
    outcome = cli("compare", copied, "--suite", "fast", "--json")
    assert "summary.json was changed since it was written" in outcome.err
    assert outcome.json["runs"][0]["selected_by"] == "validation"


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"[]", b"name: [", b"seed: 0\n"])
def test_a_damaged_recipe(cli: Cli, copied: Path, damage: bytes) -> None:
    (copied / "recipe.yaml").write_bytes(damage)
    for command in (("eval", copied), ("compare", copied), (*TRAIN, copied)):
        outcome = cli(*command)
        assert outcome.code == 2
        assert len(outcome.errors) == 1
        assert len(outcome.errors[0]) < 1000


def test_an_edited_recipe_is_refused_where_it_decides_results(cli: Cli, copied: Path, fast: Path) -> None:
    replace(copied / "recipe.yaml", "workers: 0", "workers: 1")
    assert cli("eval", copied, "--suite", fast, "--global", "--quiet").code == 0
    replace(copied / "recipe.yaml", "limit: 120", "limit: 12")
    refused(cli("eval", copied, "--suite", fast), "recipe.yaml was changed since the run was made")
    refused(cli(*TRAIN, copied), "recipe.yaml was changed since the run was made")


def test_damaged_lines_of_metrics_are_left_out_and_the_others_stay(copied: Path, trained: Run) -> None:
    path = copied / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[0] = lines[0].replace('"step": 3', '"step": 2', 1)
    lines[2] = "\x00garbage\n"
    without_digest = {key: value for key, value in json.loads(lines[3]).items() if key != "digest"}
    lines[3] = json.dumps(without_digest) + "\n"
    path.write_text("".join([*lines, '{"kind": "epoch", "st']))
    with pytest.warns(UserWarning, match=r"metrics.jsonl: 3 damaged line"):
        found = Run(copied).metrics
    assert found == [record for index, record in enumerate(trained.metrics) if index not in (0, 2, 3)]


def test_a_model_of_another_run_or_another_learner(cli: Cli, copied: Path, other: Run, fast: Path) -> None:
    for source, what in ((copied / "models" / "linf", "model"), (other.folder / "models" / "global", "run")):
        for suffix in (".json", ".safetensors"):
            shutil.copy(source.with_suffix(suffix), copied / "models" / f"global{suffix}")
        refused(cli("eval", copied, "--suite", fast, "--global"), f"models/global.safetensors is of another {what}")


def test_a_missing_model_is_missed(cli: Cli, copied: Path, fast: Path) -> None:
    (copied / "models" / "global.safetensors").unlink()
    for which in ("--global", "--learners"):
        refused(cli("eval", copied, "--suite", fast, which), "has no models/global.safetensors")
    (copied / "models" / "linf.safetensors").unlink()
    refused(cli("eval", copied, "--suite", fast, "--learners"), "has no models/global.safetensors")


def test_a_missing_learner_is_missed_too(cli: Cli, copied: Path, fast: Path) -> None:
    (copied / "models" / "l2.safetensors").unlink()
    assert cli("eval", copied, "--suite", fast, "--global", "--quiet").code == 0
    refused(cli("eval", copied, "--suite", fast, "--learners"), "has no models/l2.safetensors")


def test_what_cannot_be_written_is_shown_all_the_same(cli: Cli, copied: Path, fast: Path) -> None:
    reference = cli("eval", copied, "--suite", fast, "--global", "--json")
    shutil.rmtree(copied / "evaluations")
    (copied / "evaluations").write_text("in the way")
    outcome = cli("eval", copied, "--suite", fast, "--global", "--json")
    assert outcome.code == 1
    assert "warning: verdicts are not kept" in outcome.err
    assert outcome.errors == [line for line in outcome.errors if "could not write" in line] != []
    assert outcome.json["small-t/global"]["per_image"] == reference.json["small-t/global"]["per_image"]


@pytest.fixture
def killed() -> str:
    """The id of a process that is no more."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    return gone.stdout.strip()


def test_a_record_that_was_cut_short_by_a_kill_is_removed(cli: Cli, copied: Path, fast: Path, killed: str) -> None:
    dead = copied / "evaluations" / f".global-fast.json.{killed}.tmp"
    dead.parent.mkdir(exist_ok=True)
    dead.write_bytes(b"half")
    assert cli("eval", copied, "--suite", fast, "--global", "--quiet").code == 0
    assert not dead.exists()


def test_temporary_files_of_killed_processes_are_removed(cli: Cli, cut: Path, killed: str) -> None:
    dead = cut / "checkpoints" / f".step-000000009.safetensors.{killed}.tmp"
    living = cut / "evaluations" / f".record.json.{os.getppid()}.tmp"
    living.parent.mkdir(exist_ok=True)
    for path in (dead, living):
        path.write_bytes(b"half")
    assert cli(*TRAIN, cut).code == 0
    assert not dead.exists()
    assert living.exists()


@pytest.mark.parametrize("harm", ["flipped", "no weights", "no card", "neither"])
def test_a_damaged_model_is_told_when_a_run_goes_on_and_the_run_does_not_pass_as_whole(
    cli: Cli, cut: Path, trained: Run, harm: str
) -> None:
    weights, card = cut / "models" / "linf.safetensors", cut / "models" / "linf.json"
    kept = weights.read_bytes(), card.read_bytes()
    if harm == "flipped":
        weights.write_bytes(kept[0][:-1] + bytes([kept[0][-1] ^ 1]))
    for path in {"no weights": [weights], "no card": [card], "neither": [weights, card]}.get(harm, []):
        path.unlink()
    outcome = cli(*TRAIN, cut)
    assert outcome.code == 1
    assert "warning: " in outcome.err
    assert "models/linf" in outcome.errors[-1]
    assert not (cut / "summary.json").exists()
    weights.write_bytes(kept[0])
    card.write_bytes(kept[1])
    assert cli(*TRAIN, cut).code == 0
    assert same_models(cut, trained.folder)


def test_files_of_another_run(cli: Cli, copied: Path, other: Run, fast: Path) -> None:
    for run in (copied, other.folder):
        assert cli("eval", run, "--suite", fast, "--global", "--quiet").code == 0
    record = Path("evaluations") / "global-fast.json"
    shutil.copy(other.folder / record, copied / record)
    (note,) = cli("compare", copied, "--suite", "fast", "--json").json["notes"]
    assert "its model is not the one that was evaluated" in note
    shutil.copy(other.folder / "summary.json", copied)
    assert "summary.json is of another run" in cli("compare", copied, "--suite", "fast").err
    shutil.copy(other.folder / "metrics.jsonl", copied)
    with pytest.warns(UserWarning, match="damaged line"):
        assert Run(copied).metrics == []


def test_a_needed_network_that_changed_between_two_starts(cli: Cli, copied: Path, other: Run, tmp_path: Path) -> None:
    shutil.copytree(copied / "models", tmp_path / "needed")
    for path in (tmp_path / "needed").glob("*.json"):
        path.unlink()
    start = ["train", "digits-hat", *TINY, "--set", f"needs.standard={tmp_path / 'needed' / 'global.safetensors'}"]
    assert cli(*start, "--out", "run", "--quiet").code == 0
    (tmp_path / "run" / "summary.json").unlink()
    shutil.copy(other.folder / "models" / "global.safetensors", tmp_path / "needed")
    refused(cli(*start, "--out", "run", "--quiet", "--resume"), "it was made with another network 'standard'")


def test_json_of_a_training_names_its_folder(cli: Cli, copied: Path) -> None:
    assert cli(*TRAIN, copied, "--json").json["run"] == str(copied)
