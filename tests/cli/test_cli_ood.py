"""`generalist eval --suite ood` and what is made of its records."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_cases import Cli

import generalist
from compare_cases import write_run
from generalist import Run
from generalist.data.corruptions import COMMON, official
from generalist.data.corruptions.sequences import LENGTHS
from generalist.evaluation.ood import Along, OodResult
from generalist.report.ood import draw_ood, ood_tables

FEW = ("--suite", "ood", "--n", "12", "--quiet")


def ood_record(right: float, *, images: int = 10, source: str = "official") -> dict:
    """The same share right under everything; the names of the images as compare_cases has them."""
    verdicts = torch.arange(images) < right * images
    frames = {name: [int(right * count)] * images for name, count in LENGTHS.items()}
    return OodResult(
        verdicts, {name: verdicts.repeat(5, 1) for name in [*COMMON, "spatter"]},
        {name: Along(LENGTHS[name], row, [3] * images) for name, row in frames.items()},
        [f"{index}-0" for index in range(images)], 0, "0", {"corruptions": source, "sequences": source},
    ).record()  # fmt: skip


@pytest.fixture(scope="module")
def measured(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a record of suite ood."""
    place = tmp_path_factory.mktemp("ood") / "measured"
    run = Run(shutil.copytree(trained.folder, place, ignore=shutil.ignore_patterns("evaluations")))
    generalist.evaluate(run, suite="ood", images=12)
    return run


def test_a_run_keeps_record_and_figure(cli: Cli, measured: Run) -> None:
    record = measured.analysis("ood")
    assert record["images"] == 12
    assert measured.recorded_suites == []
    for path in measured.analysis_figures("ood"):
        assert path.stat().st_size > 10_000
    outcome = cli("eval", measured.folder, "--global", *FEW)  # from what is kept
    assert outcome.code == 0
    assert f"natural {record['natural']:.2f}" in outcome.out
    assert f"{record['severity5']:.2f}" in outcome.out
    assert "jpeg compression" in outcome.out
    assert "mean of 10" in outcome.out
    assert measured.analysis("ood")["per_image"] == record["per_image"]


def test_as_json_and_side_by_side(cli: Cli, measured: Run, copied: Path) -> None:
    outcome = cli("eval", measured.folder, "--global", *FEW, "--json")
    (record,) = outcome.json.values()
    assert record["severity5"] == measured.analysis("ood")["severity5"]
    (copied / "evaluations").mkdir(exist_ok=True)
    kept = measured.record_file("ood")
    (copied / "evaluations" / kept.name).write_bytes(kept.read_bytes())
    both = cli("compare", measured.folder, copied, "--suite", "ood", "--csv", "table.csv")
    assert both.code == 0
    assert "severity 5" in both.out
    assert "motion blur" in both.out
    assert Path("table.csv").read_text().count(f",{record['severity5']},") == 2
    drawn = cli("eval", measured.folder, "--global", *FEW, "--figure", "all.svg")
    assert drawn.code == 0
    assert Path("all.svg").read_text().startswith("<?xml")


def test_anybodys_model_needs_no_threat(cli: Cli, measured: Run) -> None:
    outcome = cli("eval", measured.model_file(), "--data", "digits", *FEW[:3], "4", "--json")
    assert outcome.code == 0
    (record,) = outcome.json.values()
    assert record["data"] == "digits"
    assert record["sources"] == {"corruptions": "drawn", "sequences": "drawn"}
    foreign = cli("eval", "--model", "small_cnn", "--data", "digits", *FEW[:3], "4", "--quiet", "--json")
    assert foreign.code == 0
    assert list(foreign.json) == ["small_cnn"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--save-adv", "x.npz"], "--save-adv goes with a suite of attacks, not with --suite ood"),
        (["--figure", "x.pdf"], ".png or .svg"),
    ],
)
def test_options_that_do_not_fit(cli: Cli, measured: Run, args: list[str], words: str) -> None:
    outcome = cli("eval", measured.folder, "--global", *FEW, *args)
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.errors) == 1


def test_what_cannot_be_compared(cli: Cli, measured: Run, copied: Path) -> None:
    outcome = cli("compare", measured.folder, copied, "--suite", "ood")
    assert outcome.code == 2
    assert (
        f"{copied} has no record of suite ood; make it with: generalist eval {copied} --suite ood --n 12" in outcome.err
    )
    outcome = cli("compare", measured.folder, "--suite", "ood", "--classes")
    assert outcome.code == 2
    assert "suite ood has no figures by class" in outcome.err
    assert cli("eval", copied, "--global", "--suite", "ood", "--n", "5", "--quiet").code == 0
    outcome = cli("compare", measured.folder, copied, "--suite", "ood")
    assert outcome.code == 2
    assert "were evaluated with different images; evaluate them alike" in outcome.err


def test_a_changed_record_is_refused(cli: Cli, measured: Run, copied: Path) -> None:
    (copied / "evaluations").mkdir(exist_ok=True)
    text = measured.record_file("ood").read_text()
    (copied / "evaluations" / "global-ood.json").write_text(text.replace('"flip_rate": ', '"flip_rate": 9', 1))
    outcome = cli("compare", copied, "--suite", "ood")
    assert outcome.code == 2
    assert "was changed since it was written" in outcome.err


def test_table_iv_stands_beside(cli: Cli, tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "at", "cifar10-resnet18-at", ood_record(0.7)),
        write_run(tmp_path / "t", "cifar10-resnet18-generalist-t", ood_record(0.8)),
    ]
    outcome = cli("compare", *runs, "--paper", "IV", "--json", "both.json")
    assert outcome.code == 0
    at, t = json.loads(Path("both.json").read_text())["runs"]
    assert at["accuracy"]["severity 5"] == 70
    assert at["paper"] == {"severity 5": 75.2, "sequences": 83.35}
    assert t["paper"]["severity 5"] == 77.76
    assert "(75.20)" in outcome.out
    assert "official" not in outcome.out
    assert "in parentheses: Generalist++, table IV" in outcome.out
    assert "FAT" in outcome.out  # which only the paper has
    found = generalist.compare(runs, suite="ood")
    assert not found.rows[0].paper
    drawn = write_run(tmp_path / "drawn", "cifar10-resnet18-at", ood_record(0.7, source="drawn"))
    assert "the paper's figures are of the official files" in cli("compare", drawn, "--paper", "IV").out
    digits = write_run(tmp_path / "digits", "digits-at", ood_record(0.7))
    assert "nothing to put beside the runs" in cli("compare", digits, "--paper", "IV").out
    scatter = cli("compare", *runs, "--suite", "ood", "--scatter", "plane.png")
    assert scatter.code == 0
    assert Path("plane.png").stat().st_size > 10_000


def test_official_files_below_the_root(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "COUNT", 4)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    labels = np.array([1, 0, 3, 2], np.uint8)
    records = np.concatenate([labels[:, None], np.zeros((4, 3072), np.uint8)], axis=1)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(records.tobytes())
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(labels, 5))
    np.save(folder / "fog.npy", np.zeros((20, 32, 32, 3), np.uint8))
    given = ("eval", "--model", "small_cnn", "--data", "cifar10", "--root", tmp_path, "--suite", "ood", "--quiet")
    outcome = cli(*given, "--json")
    assert outcome.code == 0
    (record,) = outcome.json.values()
    assert list(record["corruptions"]) == ["fog"]
    assert record["sources"] == {"corruptions": "official", "sequences": "drawn"}
    assert "lacks gaussian_noise" in record["notes"][0]
    assert "lacks gaussian_noise" in outcome.err
    np.save(folder / "snow.npy", np.zeros((20, 32, 32), np.uint8))
    outcome = cli(*given)
    assert outcome.code == 2
    assert outcome.errors[0].count("snow.npy is uint8 [20, 32, 32], should be uint8 [20, 32, 32, 3]") == 1


def test_the_figure_and_the_table_of_several(tmp_path: Path) -> None:
    records = {"a long name of a run": ood_record(0.7), "other": ood_record(0.2)}
    drawn = draw_ood(records)
    assert drawn[".png"].startswith(b"\x89PNG")
    assert b"a long name of a run" in drawn[".svg"] or len(drawn[".svg"]) > 10_000
    assert drawn == draw_ood(records)
    (table,) = ood_tables(records)
    assert table.row_count == 1 + 16 + 4


def test_the_page_has_the_corruptions(measured: Run, tmp_path: Path) -> None:
    text = generalist.write_report(measured, tmp_path / "page.html", images=0).read_text()
    assert '"jpeg_compression":' in text
    assert '"means":' in text
    assert "per_image" not in text
