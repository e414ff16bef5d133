"""An AutoAttack record as an entry of RobustBench, and why others are none."""

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import generalist
from generalist import Run, UserError
from generalist.core.files import sealed
from generalist.runs import robustbench
from generalist.runs.robustbench import architecture, robustbench_entry

FIELDS = {
    "link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture", "eps",
    "clean_acc", "reported", "autoattack_acc", "unreliable",
}  # fmt: skip
NO_LEADERBOARD = "ignore:RobustBench has no leaderboard"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model that knows little, and so costs AutoAttack little."""
    small = {"training.epochs": 1, "training.batch_size": 400, "model.width": 2, "validation.images": 10}
    run = generalist.train("digits-nt", out=tmp_path_factory.mktemp("runs") / "mine", overrides=small)
    generalist.evaluate(run, suite="autoattack")
    return run


@pytest.fixture
def run(attacked: Run, tmp_path: Path) -> Run:
    return Run(shutil.copytree(attacked.folder, tmp_path / "mine"))


def changed(run: Run, **fields: Any) -> None:
    """The record with other fields, sealed as if it had been written so."""
    path = run.record_file("autoattack")
    record = json.loads(path.read_text())
    del record["digest"]
    path.write_text(json.dumps(sealed(record | fields)))


def test_the_entry_has_the_form_and_the_figures_of_the_record(attacked: Run, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="RobustBench has no leaderboard of digits under linf:3/20; the entry has"):
        path = generalist.export(attacked, "robustbench", out=tmp_path / "entry", threat="linf:3/20").path
    entry, record = json.loads(path.read_text()), attacked.record("autoattack")
    assert path.name == "entry.json"
    assert set(entry) - {"footnote"} == FIELDS
    assert (entry["dataset"], entry["eps"], entry["architecture"]) == ("digits", "3/20", "small_cnn (width 2)")
    assert entry["clean_acc"] == f"{record['natural']:.2f}"
    assert entry["autoattack_acc"] == entry["reported"] == f"{record['accuracy']['linf:3/20']['AA']:.2f}"
    assert entry["additional_data"] is False
    assert entry["unreliable"] == bool(record["red_flags"])
    assert all(flag["message"] in entry["footnote"] for flag in record["red_flags"])


@pytest.mark.filterwarnings(NO_LEADERBOARD)
def test_one_entry_is_of_one_threat(attacked: Run) -> None:
    with pytest.raises(UserError, match="an entry is of one threat, the record has linf:3/20, l2:1"):
        robustbench_entry(attacked, "global")
    with pytest.raises(UserError, match=r"the record has no linf:8/255; it has linf:3/20, l2:1"):
        robustbench_entry(attacked, "global", "linf:8/255")
    assert robustbench_entry(attacked, "global", "l2:1")["eps"] == "1"


@pytest.mark.filterwarnings(NO_LEADERBOARD)
def test_the_only_threat_needs_no_naming(run: Run) -> None:
    changed(run, threats={"linf:3/20": run.record("autoattack")["threats"]["linf:3/20"]})
    assert robustbench_entry(run, "global")["eps"] == "3/20"


def test_a_threat_of_a_leaderboard_is_not_warned_of(
    attacked: Run, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setitem(robustbench.LEADERBOARDS, "digits", {"linf": Fraction(3, 20)})
    robustbench_entry(attacked, "global", "linf:3/20")
    assert [str(one.message) for one in recwarn] == []


def test_only_standard_autoattack_on_the_whole_test_split_counts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run.record("autoattack")
    weaker = {**record["stages"], "Square": {**record["stages"]["Square"], "queries": 10}}
    changed(run, stages=weaker)
    with pytest.raises(UserError, match=r"is not of standard AutoAttack; make it with: generalist eval .* autoattack$"):
        robustbench_entry(run, "global", "linf:3/20")
    changed(run, stages=record["stages"], weights={"path": "x", "sha256": "0"})
    with pytest.raises(UserError, match="is of other weights"):
        robustbench_entry(run, "global", "linf:3/20")
    generalist.evaluate(run, suite="autoattack", images=20)
    with pytest.raises(UserError, match=r"is of 20 of the 359 test images; an entry is of all of them"):
        robustbench_entry(run, "global", "linf:3/20")
    run.environment_file.unlink()  # as for an exported point of a dial
    with pytest.raises(UserError, match="is of 20 of the 359 test images"):
        robustbench_entry(run, "global", "linf:3/20")
    limited = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"limit": 20})})
    with monkeypatch.context() as patch:
        patch.setattr(Run, "recipe", property(lambda self: limited))
        with pytest.raises(UserError, match=r"has a test split that data.limit=20 cut; an entry is of all of it"):
            robustbench_entry(run, "global", "linf:3/20")
    run.record_file("autoattack").unlink()
    with pytest.raises(
        UserError, match="has no AutoAttack record of its model 'global'; make it with: generalist eval"
    ):
        robustbench_entry(run, "global", "linf:3/20")


@pytest.mark.filterwarnings(NO_LEADERBOARD)
def test_what_an_entry_should_not_hide_is_in_its_footnote(
    attacked: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = attacked.recipe
    init = generalist.load_recipe("digits-nt", {"init.from": "robust.pt"}).init
    chosen = recipe.model_copy(update={"select": "test", "init": init})
    monkeypatch.setattr(Run, "recipe", property(lambda self: chosen))
    note = robustbench_entry(attacked, "global", "linf:3/20")["footnote"]
    assert "The checkpoint was selected on the test set." in note
    assert "Training started from robust.pt" in note


def test_a_model_without_a_run_has_no_record(attacked: Run, tmp_path: Path) -> None:
    path = generalist.save_model(generalist.load(attacked.folder), tmp_path / "alone")
    with pytest.raises(UserError, match="is no run; an entry is made of the AutoAttack record in a run folder"):
        generalist.export(path, "robustbench", out=tmp_path / "entry.json")


def test_networks_are_called_as_robustbench_calls_them() -> None:
    assert architecture("resnet18", None) == architecture("resnet18", 64) == "ResNet-18"
    assert architecture("resnet18", 16) == "ResNet-18 (width 16)"
    assert architecture("wrn-28-10", None) == "WideResNet-28-10"
    assert architecture("timm/convnext_atto", None) == "timm/convnext_atto"
