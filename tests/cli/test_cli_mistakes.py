"""Whatever a user gets wrong: one line naming what was given and what would do, exit code 2, nothing left behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_cases import TINY, Cli, Outcome

D = "digits-generalist-d-natural"
LINF = "learners.linf"

CHANGES = {
    "field": ("trainig.epochs=1", "'trainig'", "did you mean 'training'?"),
    "field-2": ("training.epoch=1", "training", "'epoch'", "did you mean 'epochs'?"),
    "field-3": (f"{LINF}.optimiser.lr=1", LINF, "'optimiser'", "did you mean 'optimizer'?"),
    "learner": ("learners.natrual.optimizer.lr=1", "learner 'natrual'", "did you mean 'natural'?"),
    "whole-learner": ("learners.linf=3", "learners.linf=3"),
    "objective-field": (f"{LINF}.objective.stepz=3", f"{LINF}.objective", "'stepz'", "did you mean 'steps'?"),
    "optimizer-field": (f"{LINF}.optimizer.momentm=0", f"{LINF}.optimizer", "'momentm'", "did you mean 'momentum'?"),
    "schedule-field": (f"{LINF}.schedule.vales=[1]", f"{LINF}.schedule", "'vales'", "did you mean 'values'?"),
    "gamma-field": (f"{LINF}.gamma.vals=[1]", f"{LINF}.gamma", "'vals'", "did you mean 'values'?"),
    "objective": (f"{LINF}.objective.name=adverserial", "'adverserial'", "did you mean 'adversarial'?"),
    "objective-type": (f"{LINF}.objective=3", f"{LINF}.objective", "a name or a mapping", "got 3"),
    "optimizer": (f"{LINF}.optimizer.name=sdg", "'sdg'", "did you mean 'sgd'?"),
    "schedule": (f"{LINF}.schedule.name=cosin", "'cosin'", "did you mean 'cosine'?"),
    "two-rests": (f"{LINF}.gamma=rest", "only one learner can take the rest"),
    "gamma-high": (f"{LINF}.gamma=1.3", f"{LINF}.gamma", "0..1", "got 1.3"),
    "gamma-word": (f"{LINF}.gamma=half", f"{LINF}.gamma", "rest", "got 'half'"),
    "gamma-share": (f"{LINF}.gamma={{share: 2}}", f"{LINF}.gamma", "0..1", "got 2"),
    "gamma-points": (f"{LINF}.gamma={{at: [0, 1], values: [1]}}", f"{LINF}.gamma", "got 2 and 1"),
    "gamma-order": (f"{LINF}.gamma={{at: [1, 0], values: [1, 1]}}", f"{LINF}.gamma", "must rise", "1, 0"),
    "eps-zero": (f"{LINF}.objective.threat=linf:0", f"{LINF}.objective", "eps must be > 0", "got 0"),
    "eps-negative": (f"{LINF}.objective.threat=linf:-8/255", "eps must be > 0", "got -8/255"),
    "eps-fraction": (f"{LINF}.objective.threat=linf:8/25x", "'8/25x'", "8/255"),
    "eps-by-zero": (f"{LINF}.objective.threat=linf:8/0", "'8/0'", "8/255"),
    "norm": (f"{LINF}.objective.threat=l3:1", "norm 'l3'", "l1, l2, linf"),
    "lr": (f"{LINF}.optimizer.lr=0", f"{LINF}.optimizer", "lr", "greater than 0", "got 0"),
    "lr-negative": (f"{LINF}.optimizer.lr=-1", "lr", "greater than 0", "got -1"),
    "momentum": (f"{LINF}.optimizer.momentum=1", "momentum", "less than 1", "got 1"),
    "epochs": ("training.epochs=0", "training.epochs", "greater than or equal to 1", "got 0"),
    "epochs-word": ("training.epochs=ten", "training.epochs", "integer", "got 'ten'"),
    "section": ("training=3", "training", "mapping", "got 3"),
    "start": ("mixing.start=1/0", "mixing.start", "'1/0'", "8/255"),
    "start-late": ("mixing.start=3/2", "mixing.start", "less than or equal to 1"),
    "batch": ("training.batch_size=5000", "5000", "1222 images"),
    "dataset": ("data.name=cifar11", "dataset 'cifar11'", "did you mean 'cifar10'?"),
    "model": ("model.name=resnet81", "model 'resnet81'", "did you mean 'resnet18'?"),
    "model-option": ("model.options.widht=3", "'widht'", "did you mean 'width'?"),
    "precision": ("training.precision=fp8", "training.precision", "'bf16'", "got 'fp8'"),
    "device": ("training.device=gpu", "device 'gpu'", "cuda"),
    "select": ("select=best", "select", "'validation'", "got 'best'"),
    "init": ("init.from=/nowhere/x.safetensors", "/nowhere/x.safetensors", "does not exist"),
    "init-suffix": ("init.from=README.txt", "README.txt", ".safetensors"),
    "no-value": ("training.epochs", "'training.epochs'", "field.path=value"),
    "no-field": ("=3", "'=3'", "field.path=value"),
    "value": ("training.epochs=[1", "training.epochs", "'[1'"),
}


def assert_one_clear_line(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 2, outcome.err
    (line,) = outcome.errors
    assert line.startswith("error: ")
    for fragment in fragments:
        assert fragment in line
    assert line.count("got ") <= 2, f"says again and again what was given: {line}"
    assert outcome.out == ""


@pytest.mark.parametrize("case", CHANGES)
def test_a_wrong_field_or_value(cli: Cli, tmp_path: Path, case: str) -> None:
    change, *fragments = CHANGES[case]
    assert_one_clear_line(cli("train", D, "--set", change, "--out", "run"), *fragments)
    assert list(tmp_path.iterdir()) == []


LATE = "digits-generalist-late-d"
NATURAL = "learners.natural"
PARTIAL = {
    "unknown": ([f"{NATURAL}.trains=[conv55]"], f"{NATURAL}.trains", "module 'conv55'", "did you mean 'conv5'?"),
    "far": ([f"{NATURAL}.trains=zzz"], f"{NATURAL}.trains", "module 'zzz'", "known: conv1, bn1, conv2"),
    "none": ([f"{NATURAL}.trains=[]"], f"{NATURAL}.trains", "trains nothing", "name the modules"),
    "no-parameter": ([f"{NATURAL}.trains=[bn5.running_mean]"], f"{NATURAL}.trains", "no parameter", "bn5.running_mean"),
    "number": ([f"{NATURAL}.trains=3"], f"{NATURAL}.trains", "module names", "got 3"),
    "numbers": ([f"{NATURAL}.trains=[fc, 3]"], f"{NATURAL}.trains", "module names", "got ['fc', 3]"),
    "empty-name": ([f"{NATURAL}.trains=['']"], f"{NATURAL}.trains", "printable", "got ''"),
    "mapping": ([f"{NATURAL}.trains={{first: 1/4}}"], f"{NATURAL}.trains", "{last: 1/4}", "'first'"),
    "last-zero": ([f"{NATURAL}.trains={{last: 0}}"], f"{NATURAL}.trains", "above 0", "got 0"),
    "last-two": ([f"{NATURAL}.trains={{last: 2}}"], f"{NATURAL}.trains", "up to 1", "got 2"),
    "last-word": ([f"{NATURAL}.trains={{last: half}}"], f"{NATURAL}.trains", "'half'", "8/255"),
    "starts-word": ([f"{NATURAL}.starts=late"], f"{NATURAL}.starts", "'late'", "8/255"),
    "starts-one": ([f"{NATURAL}.starts=1"], f"{NATURAL}.starts", "less than 1"),
    "ends-zero": (["learners.linf.ends=0"], "learners.linf.ends", "greater than 0"),
    "starts-after-end": ([f"{NATURAL}.ends=1/2"], "'natural'", "from 4/5 to 1/2", "start before it ends"),
    "too-short": (["training.epochs=1"], "'linf'", "4/5 of 1 epochs", "none of them"),
    "before-start": ([f"{NATURAL}.gamma=0.5"], "'natural' starts after epoch 19", "must be 0 until then", "got 0.5"),
    "nobody": (["learners.linf.starts=1/2"], "no learner is trained from the start", "linf 12–19"),
    "gap": (["learners.linf.ends=1/2"], "no learner is trained after epoch 12", "end later"),
    "sum": (["learners.linf.gamma=0.5", f"{NATURAL}.gamma=0.5", f"{NATURAL}.starts=0"],
            "sum to 1", "linf=0.5 (sum 0.5)", "in conv1, bn1"),
    "untrained": (["learners.linf.trains=[conv*, fc]"], "no learner trains bn1", "train everything"),
    "gamma-module": ([f"{NATURAL}.gamma={{modules: {{cnv5: 0.5}}}}", f"{NATURAL}.starts=0"],
                     "module 'cnv5'", "did you mean 'conv5'?"),
    "gamma-modules": ([f"{NATURAL}.gamma={{modules: [fc]}}"], f"{NATURAL}.gamma", "by module name"),
    "gamma-beside": ([f"{NATURAL}.gamma={{modules: {{fc: 0.5}}, share: 0.5}}"], f"{NATURAL}.gamma", "nothing beside"),
    "gamma-inner": ([f"{NATURAL}.gamma={{modules: {{fc: 1.5}}}}"], f"{NATURAL}.gamma", "0..1", "got 1.5"),
    "gamma-inside": ([f"{NATURAL}.gamma={{modules: {{fc: {{modules: {{x: 1}}}}}}}}"], f"{NATURAL}.gamma"),
    "depth-one": ([f"{NATURAL}.gamma={{depth: [1]}}"], f"{NATURAL}.gamma", "2 to 100 factors", "got [1]"),
    "depth-word": ([f"{NATURAL}.gamma={{depth: deep}}"], f"{NATURAL}.gamma", "factors", "got 'deep'"),
    "depth-high": ([f"{NATURAL}.gamma={{depth: [0, 2]}}"], f"{NATURAL}.gamma", "0..1", "got 2"),
    "start-of-its-own": (["learners.linf.objective.name=rmc", "learners.linf.objective.threats=[linf:0.1]",
                          "learners.linf.trains=[fc]", "needs.first=digits-at", "needs.second=digits-at-l2"],
                         "'rmc'", "start of its own", "leave trains out"),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTIAL)
def test_wrong_modules_windows_and_gammas_of_them(cli: Cli, tmp_path: Path, case: str) -> None:
    changes, *fragments = PARTIAL[case]
    sets = [part for change in changes for part in ("--set", change)]
    assert_one_clear_line(cli("train", LATE, *sets, "--out", "run"), *fragments)
    assert list(tmp_path.iterdir()) == []


def test_gammas_that_do_not_sum_to_one(cli: Cli, tmp_path: Path) -> None:
    changes = ["--set", "learners.linf.gamma=0.3", "--set", "learners.natural.gamma=0.3"]
    outcome = cli("train", D, *changes, "--out", "run")
    assert_one_clear_line(outcome, "linf=0.3, natural=0.3", "sum 0.6", "gamma: rest")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["train", "digts-at"], ["recipe 'digts-at'", "did you mean 'digits-at'?"]),
        (["train", "zzz"], ["recipe 'zzz'", "generalist recipes", ".yaml"]),
        (["train", "mine.yaml"], ["no recipe file", "mine.yaml"]),
        (["train"], ["RECIPE", "generalist train --help"]),
        (["trian"], ["'trian'", "generalist --help"]),
        (["train", "digits-at", "--resum"], ["--resum", "--resume"]),
        (["recipes", "show", "digts-at"], ["did you mean 'digits-at'?"]),
        (["doctor", "digts-at"], ["did you mean 'digits-at'?"]),
        (["eval", "nowhere"], ["nowhere", "not a run folder", "recipe.yaml"]),
        (["eval", "nowhere", "--batch-size", "0"], ["--batch-size", "greater than or equal to 1"]),
        (["eval"], ["nothing to evaluate", "--model"]),
        (["eval", "nowhere", "--suite", "autoatack"], ["'autoatack'", "did you mean 'autoattack'?"]),
        (["eval", "--model", "resnet18"], ["--data"]),
        (["eval", "--model", "resnet18", "--data", "digits"], ["--threat"]),
    ],
)
def test_a_wrong_name_or_argument(cli: Cli, args: list[str], fragments: list[str]) -> None:
    assert_one_clear_line(cli(*args), *fragments)


FILES = {
    "not-yaml": ({"a.yaml": "data: [1"}, ["a.yaml", "not readable YAML"]),
    "not-a-mapping": ({"a.yaml": "- 1\n- 2"}, ["a.yaml", "mapping", "list"]),
    "empty": ({"a.yaml": ""}, ["a.yaml", "mapping"]),
    "extends-missing-file": ({"a.yaml": "extends: b.yaml"}, ["b.yaml", "a.yaml extends"]),
    "extends-unknown": ({"a.yaml": "extends: digits-generalist-x"}, ["'digits-generalist-x'", "did you mean"]),
    "extends-list": ({"a.yaml": "extends: [digits-at, digits-nt]"}, ["a.yaml", "one recipe name or file"]),
    "circle": ({"a.yaml": "extends: b.yaml", "b.yaml": "extends: a.yaml"}, ["circle", "a.yaml", "b.yaml"]),
    "circle-of-one": ({"a.yaml": "extends: a.yaml"}, ["circle", "a.yaml"]),
    "learners-list": ({"a.yaml": "extends: digits-at\nlearners: [linf]"}, ["learners", "mapping", "['linf']"]),
    "learner-number": ({"a.yaml": "extends: digits-at\nlearners: {linf: 3}"}, ["linf", "mapping", "got 3"]),
    "learner-unknown": ({"a.yaml": "extends: digits-at\nlearners: {lnf: {}}"}, ["'lnf'", "did you mean 'linf'?"]),
    "learner-empty": ({"a.yaml": "name: a\nlearners: {x: {}}"}, ["'x'", "objective"]),
    "learner-name": (
        {"a.yaml": "extends: digits-at\nlearners: {global: {task: linf}}"},
        ["'global'", "cannot name a learner"],
    ),
    "no-data": ({"a.yaml": "name: a\nlearners: {x: {objective: natural, optimizer: {name: sgd, lr: 1}}}"}, ["data"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_recipe_file(cli: Cli, tmp_path: Path, case: str) -> None:
    files, fragments = FILES[case]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert_one_clear_line(cli("train", "a.yaml"), *fragments)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize(
    ("changed", "fragments"),
    [
        ({"y_train": np.arange(60) % 4}, ["label 3", "train split", "3 classes", "0 to 2"]),
        ({"y_test": np.arange(30) - 1}, ["label -1", "test split", "0 to 2"]),
        ({"x_train": np.full((60, 1, 8, 8), 1.5, np.float32)}, ["x_train", "1.5", "[0, 1]"]),
        ({"x_test": np.zeros((0, 1, 8, 8), np.uint8), "y_test": np.zeros(0, np.int64)}, ["test split is empty"]),
        ({"x_train": np.zeros((0, 1, 8, 8), np.uint8), "y_train": np.zeros(0, np.int64)}, ["train split is empty"]),
        ({"x_train": np.zeros((60, 1, 8, 6), np.uint8)}, ["8", "6"]),
    ],
)
def test_wrong_arrays(
    cli: Cli, npz: Callable[..., Path], tmp_path: Path, changed: dict[str, np.ndarray], fragments: list[str]
) -> None:
    data = ["--set", "data.name=npz", "--set", f"data.root={npz(**changed)}"]
    assert_one_clear_line(cli("train", "digits-at", *data, "--out", "run"), *fragments)
    assert list(tmp_path.iterdir()) == []


def test_missing_data_tells_where_it_was_looked_for_and_how_to_get_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    outcome = cli("train", "cifar10-resnet18-at", "--set", "data.root=empty", "--out", "run")
    assert_one_clear_line(outcome, "cifar10", "empty", "--download")
    assert not (tmp_path / "run").exists()


def test_a_class_without_training_images_is_a_warning_and_training_goes_on(
    cli: Cli, npz: Callable[..., Path], tmp_path: Path
) -> None:
    root = npz(y_train=np.arange(60) % 2)
    changes = [*TINY, "--set", f"data.root={root}", "--set", "data.name=npz", "--set", "training.batch_size=20"]
    outcome = cli("train", "digits-nt", *changes, "--set", "training.epochs=1", "--out", "run")
    assert outcome.code == 0
    assert "warning: npz: no training image of eel" in outcome.err.splitlines()
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_run_folder_of_another_recipe_names_the_field(cli: Cli, copied: Path) -> None:
    changes = [*TINY, "--set", "learners.l2.optimizer.lr=0.5"]
    before = sorted(copied.rglob("*"))
    outcome = cli("train", "digits-generalist-t", *changes, "--out", copied, "--resume")
    assert_one_clear_line(outcome, str(copied), "learners.l2.optimizer.lr is 0.5 here and 0.1 there", "--out")
    assert sorted(copied.rglob("*")) == before


def test_an_existing_run_is_not_touched_without_resume(cli: Cli, copied: Path) -> None:
    summary = (copied / "summary.json").read_text()
    outcome = cli("train", "digits-generalist-t", *TINY, "--out", copied)
    assert_one_clear_line(outcome, str(copied), "--resume", "--out")
    assert (copied / "summary.json").read_text() == summary


def test_a_folder_with_other_files_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("…")
    assert_one_clear_line(cli("train", "digits-at", *TINY, "--out", "thesis"), "thesis", "not empty", "--out")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_a_file_as_run_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert_one_clear_line(cli("train", "digits-at", *TINY, "--out", "run"), "run is a file", "--out")


def test_a_broken_newest_checkpoint_is_named_and_the_one_before_is_used(cli: Cli, copied: Path) -> None:
    (copied / "summary.json").unlink()
    newest = max((copied / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    outcome = cli("train", "digits-generalist-t", *TINY, "--out", copied, "--resume")
    assert outcome.code == 0
    (warning,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert newest.stem in warning
    assert "corrupt" in warning
    assert "at step 6 of 9" in outcome.err
    assert (copied / "summary.json").is_file()


def test_only_broken_checkpoints_are_an_error(cli: Cli, copied: Path) -> None:
    (copied / "summary.json").unlink()
    files = sorted((copied / "checkpoints").glob("*.safetensors"))
    for path in files:
        path.write_bytes(b"")
    outcome = cli("train", "digits-generalist-t", *TINY, "--out", copied, "--resume")
    assert_one_clear_line(outcome, "checkpoints", files[0].stem, "corrupt")
    assert not (copied / "summary.json").exists()


@pytest.mark.parametrize("threat", ["l3:1", "linf", "linf:-1", "linf:x"])
def test_a_wrong_threat_in_eval(cli: Cli, copied: Path, threat: str) -> None:
    assert_one_clear_line(cli("eval", copied, "--threat", threat), threat.removeprefix("linf:").removesuffix(":1"))
    assert not (copied / "evaluation.json").exists()


def test_a_broken_model_in_eval(cli: Cli, copied: Path) -> None:
    path = copied / "models" / "global.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert_one_clear_line(cli("eval", copied), str(path), "sha256")


def test_a_run_without_models_in_eval(cli: Cli, copied: Path) -> None:
    shutil.rmtree(copied / "models")
    assert_one_clear_line(cli("eval", copied), str(copied), "no model")


def test_a_broken_recipe_in_a_run_folder(cli: Cli, copied: Path) -> None:
    (copied / "recipe.yaml").write_text("data: [1")
    assert_one_clear_line(cli("eval", copied), "recipe.yaml", "YAML")


def test_a_folder_that_cannot_be_made_is_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = cli("train", "digits-at", *TINY, "--out", "file/run")
    assert outcome.code in (1, 2)
    assert len(outcome.errors) == 1
    assert "file" in outcome.errors[0]


def test_as_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "generalist", "train", "digits-at", "--set", "training.epochs=0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: recipe 'digits-at': training.epochs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_command_for_one_process_under_torchrun(rank: int, tmp_path: Path) -> None:
    """In a process of its own: a rank ends without Python's orderly exit."""
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": str(rank)}
    command = [sys.executable, "-m", "generalist", "export", "x"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = "error: generalist export is for one process, torchrun started 2; train, eval and dial share their work\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said if rank == 0 else "")
    assert not list(tmp_path.iterdir())
