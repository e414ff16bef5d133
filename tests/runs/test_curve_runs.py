"""The curve of a run: its record, its figures, what its other evaluations found, and a kill."""

import json
import os
import shutil
import signal

import pytest
import torch

import generalist
from curve_cases import curve_result, small_budgets
from generalist.core.errors import UserError
from generalist.core.files import sealed
from generalist.evaluation import verdicts as on_disk
from generalist.runs.analyses import analysis_named, keep_analysis
from generalist.runs.compare import recorded_analyses
from generalist.runs.curve import curve_of_target
from generalist.runs.targets import run_target
from run_cases import exit_code, forked, rendered_figures

SMALL = {
    "training.epochs": 3, "data.limit": 300, "model.width": 8, "validation.images": 20, "validation.steps": 2,
    "validation.threats": ["linf:1/20"],
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Not to be written to."""
    return generalist.train("digits-at", out=tmp_path_factory.mktemp("runs") / "at", overrides=SMALL)


@pytest.fixture
def run(trained, tmp_path):
    return generalist.Run(shutil.copytree(trained.folder, tmp_path / "at"))


@pytest.fixture(autouse=True)
def cheap():
    with small_budgets():
        yield


def target(run):
    return run_target(run, "global", [])


def test_the_record_and_the_figures_are_in_the_run_folder(run):
    result = curve_of_target(target(run), images=12)
    with rendered_figures():
        png, svg = keep_analysis(target(run), analysis_named("curve"), result)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_text().count('id="axes_') == 1
    record = run.analysis("curve")
    assert record == json.loads(json.dumps(sealed(result.record())))
    assert (record["suite"], record["images"], record["split"]) == ("curve", 12, "test")
    assert recorded_analyses([run.folder], "curve") == {"at": record}
    assert run.suite_records() == []  # no suite of attacks


def test_what_a_suite_broke_is_never_above(run):
    """A record of the same model at a radius caps the distances, even where the search found nothing."""
    plain = curve_of_target(target(run), images=10)
    (curve,) = plain.curves.values()
    generalist.evaluate(run, suite="pgd20", images=10)
    file = run.record_file("pgd20")
    record = json.loads(file.read_text())
    del record["digest"]
    (threat,) = record["threats"]
    right = [index for index, value in enumerate(record["per_image"]["natural"]) if value]
    for verdicts in record["per_image"][threat].values():
        for index in right:
            verdicts[index] = 0
    record["threats"][threat]["eps"] = "1/1000"
    for row in record["accuracy"].values():
        row.update(dict.fromkeys(row, 0.0))
    file.write_text(json.dumps(sealed(record)))
    (capped,) = curve_of_target(target(run), images=10).curves.values()
    assert all(capped.distances[index] <= 1 / 1000 for index in right)
    assert max(curve.distances) > 1 / 1000
    file.write_text(json.dumps(sealed(record | {"model_sha256": "another"})))
    (alone,) = curve_of_target(target(run), images=10).curves.values()
    assert alone.distances == curve.distances


def test_killed_and_resumed_is_as_uninterrupted(run, trained, tmp_path):
    """SIGKILL in the middle of a line of kept distances."""
    whole = curve_of_target(target(generalist.Run(shutil.copytree(trained.folder, tmp_path / "whole"))), images=12,
                            batch_size=4)  # fmt: skip

    def doomed():
        append, written = on_disk.append_row, []

        def cut(path, row):
            append(path, row)
            written.append(row)
            if len(written) == 2:
                os.truncate(path, path.stat().st_size - 20)
                os.kill(os.getpid(), signal.SIGKILL)

        on_disk.append_row = cut
        torch.set_num_threads(1)
        curve_of_target(target(run), images=12, batch_size=4)

    assert exit_code(forked(doomed)) == -signal.SIGKILL
    resumed = curve_of_target(target(run), images=12, batch_size=4)
    strip = ("date", "wall_seconds", "weights")
    a, b = ({k: v for k, v in one.record().items() if k not in strip} for one in (whole, resumed))
    assert a["threats"] == b["threats"]
    assert a == b | {key: a[key] for key in a if key in ("run", "target")}


def test_records_side_by_side_are_of_the_same_images_and_threats(run, trained, tmp_path):
    other = generalist.Run(shutil.copytree(trained.folder, tmp_path / "other"))
    with pytest.raises(UserError, match=r"at has no record of suite curve; make it with: generalist eval .*curve"):
        recorded_analyses([run.folder], "curve")
    run.write_analysis(sealed(curve_result({"linf:1/10": [0.1, 0.2]}).record()))
    other.write_analysis(sealed(curve_result({"linf:1/10": [0.3, 0.4]}).record()))
    assert list(recorded_analyses([run.folder, other.folder], "curve")) == ["at", "other"]
    twin = shutil.copytree(run.folder, tmp_path / "deep" / "at")
    assert list(recorded_analyses([run.folder, twin], "curve")) == [str(run.folder), str(twin)]
    other.write_analysis(sealed(curve_result({"linf:1/10": [0.3, 0.4, 0.5]}).record()))
    with pytest.raises(UserError, match="different images"):
        recorded_analyses([run.folder, other.folder], "curve")
    other.write_analysis(sealed(curve_result({"linf:1/5": [0.3, 0.4]}).record()))
    with pytest.raises(UserError, match="different threats"):
        recorded_analyses([run.folder, other.folder], "curve")
