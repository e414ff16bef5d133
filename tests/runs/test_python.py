"""A run from Python alone: trained, evaluated, compared, without the command line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import generalist
from generalist import UserError
from generalist.cli import main as command_line
from generalist.runs.evaluate import Unrecorded
from generalist.training.state import TrainState

SMALL = {
    "training.epochs": 2,
    "data.limit": 120,
    "model.width": 4,
    "validation": {"images": 20, "steps": 2, "every_epochs": 1, "threats": ["linf:1/10", "l2:1/2"]},
}
COSTS = {"date", "wall_seconds", "cpu_seconds", "costs", "digest"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    return [generalist.train(f"digits-{name}", out=folder / name, overrides=SMALL) for name in ("nt", "at")]


def figures(path: Path) -> dict:
    return {key: value for key, value in json.loads(path.read_text()).items() if key not in COSTS}


def test_python_and_the_command_line_leave_the_same_record(trained, monkeypatch):
    run = trained[0]
    result = generalist.evaluate(run.folder, images=30)
    path = run.record_file("pgd20")
    by_python = figures(path)
    assert by_python == {
        key: value for key, value in json.loads(json.dumps(result.record())).items() if key in by_python
    }
    path.unlink()
    monkeypatch.setattr("sys.argv", ["generalist", "eval", str(run.folder), "--global", "--n", "30", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert not ended.value.code
    assert figures(path) == by_python
    assert by_python["weights"]["sha256"] == run.model_digest()


def test_runs_are_compared_without_the_command_line(trained):
    for run in trained:
        generalist.evaluate(run, images=20)
    found = generalist.compare([run.folder for run in trained])
    assert [entry["recipe"] for entry in found.record()["runs"]] == ["digits-nt", "digits-at"]


def test_a_learner_is_evaluated_by_its_name(trained):
    result = generalist.evaluate(trained[1], name="linf", images=20)
    assert trained[1].record("pgd20", "linf")["natural"] == result.record()["natural"]
    with pytest.raises(UserError, match="no model 'l2' yet; it has global, linf"):
        generalist.evaluate(trained[1], name="l2")


def test_images_in_every_form_give_the_same_verdicts(trained, tmp_path):
    model = trained[1].model()
    test = generalist.load_dataset("digits").test
    x, y = test.images[:24].float() / 255, test.labels[:24]
    np.savez(tmp_path / "few.npz", x=test.images[:24].numpy(), y=y.numpy())
    forms = {
        "name": "digits",
        "file": tmp_path / "few.npz",
        "tensors": (x, y),
        "uint8": (test.images[:24], y),
        "arrays": (x.numpy(), y.numpy()),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=7),
    }
    found = {
        form: generalist.evaluate(model, data, threats="linf:1/10", images=24).record()["per_image"]
        for form, data in forms.items()
    }
    assert all(verdicts == found["tensors"] for verdicts in found.values()), found
    with pytest.raises(UserError, match="a DataLoader, a torch Dataset"):
        generalist.evaluate(model, 3, threats="linf:1/10")


def test_a_result_is_printed_as_a_table(trained):
    result = generalist.evaluate(trained[1], images=20)
    lines = str(result).splitlines()
    assert lines[0] == "20 images, accuracy in %"
    rows = {line.split()[0]: line for line in lines[2:]}
    assert {"natural", "linf:1/10", "l2:1/2", "mean", "true"} <= set(rows)
    figure = result.table()["linf:1/10"]["PGD20"]
    assert re.search(rf"{figure:.2f} \[\d+\.\d\d, \d+\.\d\d\]", rows["linf:1/10"])


def test_a_mapping_is_a_recipe_and_so_are_overrides(tmp_path):
    as_text = [f"{field}={json.dumps(value)}" for field, value in SMALL.items()]
    named = generalist.load_recipe("digits-nt", as_text)
    mapped = generalist.load_recipe({"extends": "digits-nt", "name": "digits-nt", **nested(SMALL)})
    assert {**mapped.plain(), "description": ""} == {**named.plain(), "description": ""}
    whole = generalist.load_recipe(named.plain())
    assert whole == named
    with pytest.raises(UserError, match="unknown recipe field 'epochs'"):
        generalist.load_recipe({"extends": "digits-nt", "epochs": 3})


def nested(flat):
    found: dict = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        place = found
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def test_errors_speak_of_python_to_python_and_of_options_to_the_command_line(trained, tmp_path, monkeypatch, capsys):
    run = trained[0]
    with pytest.raises(UserError) as refused:
        generalist.train("digits-nt", out=run.folder, overrides=SMALL)
    assert "--" not in str(refused.value)
    assert "resume it or give another folder" in str(refused.value)
    sets = [part for field, value in SMALL.items() for part in ("--set", f"{field}={json.dumps(value)}")]
    monkeypatch.setattr("sys.argv", ["generalist", "train", "digits-nt", *sets, "--out", str(run.folder)])
    with pytest.raises(SystemExit):
        command_line.main()
    assert "--resume" in capsys.readouterr().err


def test_what_cannot_be_built_leaves_no_folder_behind(tmp_path):
    with pytest.raises(UserError, match="cifar10"):
        generalist.train("cifar10-resnet18-at", out=tmp_path / "a" / "b", overrides={"data.root": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    """Several levels deep: what was not made cannot be removed, and must not hide the reason."""

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(UserError, match="cannot be used as a run folder: Permission denied"):
        generalist.train("digits-nt", out=tmp_path / "a" / "b" / "c", overrides=SMALL)


def test_progress_is_shown_when_asked(tmp_path, capsys):
    small = {**SMALL, "training.epochs": 1}
    generalist.train("digits-nt", out=tmp_path / "silent", overrides=small)
    assert capsys.readouterr().err == ""
    generalist.train("digits-nt", out=tmp_path / "shown", overrides=small, progress=True)
    assert "epoch 1 global: natural" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_costs_no_result(trained, monkeypatch):
    def full(*_, **__):
        raise generalist.RunError("could not write: No space left on device")

    monkeypatch.setattr("generalist.runs.folder.write_json", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert generalist.evaluate(trained[0], images=10).record()["images"] == 10
    assert issubclass(Unrecorded, generalist.RunError)


def test_the_global_model_is_made_once_per_validated_epoch(tmp_path, monkeypatch):
    made = []
    materialise = TrainState.materialise_global_

    def counted(state):
        made.append(state.step)
        return materialise(state)

    monkeypatch.setattr(TrainState, "materialise_global_", counted)
    more = {"training.epochs": 4, "mixing.start": 0, "mixing.every_epochs": 1}
    generalist.train("digits-generalist-d-natural", out=tmp_path / "d", overrides={**SMALL, **more})
    assert len(made) == 4
    assert len(set(made)) == 4


def test_a_tracker_gets_the_numbers_and_is_closed(tmp_path, monkeypatch):
    logged, closed = {}, []

    class Tracker:
        def log(self, values, *, step):
            logged.setdefault(step, {}).update(values)

        def close(self, *, completed):
            closed.append(completed)

    monkeypatch.setattr("generalist.runs.recorder.open_trackers", lambda run, *, step, say: [Tracker()])
    run = generalist.train("digits-nt", out=tmp_path / "nt", overrides=SMALL)
    last = [row for row in run.metrics if row["kind"] == "validation"][-1]
    values = logged[last["step"]]
    assert values["validation/models/global/natural"] == last["models"]["global"]["natural"]
    assert values["epoch/train/natural/loss"] > 0
    assert closed == [True]
    assert torch.is_tensor(run.model()(torch.zeros(1, 1, 8, 8)))
