"""`generalist report`: one page that needs nothing else, whatever the folders hold."""

import json
import shutil
from pathlib import Path

import pytest
from cli_cases import Cli
from report_cases import page_data

from compare_cases import record, write_run
from generalist import Run
from generalist.core.files import sealed

FEW = ("--points", "6", "--images", "20", "--quiet")


def test_the_page_has_the_figures_of_the_records(reported: Path) -> None:
    data = page_data(reported)
    kept_record = json.loads((reported.parent / "attacked" / "evaluations" / "global-pgd20.json").read_text())
    (row,) = data["groups"][0]["rows"]
    assert row["values"]["natural"] == kept_record["natural"]
    (dial,) = data["dials"]
    kept = json.loads((reported.parent / "attacked" / "dial" / "last.json").read_text())
    assert [point["natural"] for point in dial["points"]] == [point["natural"] for point in kept["points"]]
    assert dial["points"][dial["chosen"]]["weights"] == kept["chosen"]["weights"]
    assert all(len(point["said"]) == len(dial["pictures"]) for point in dial["points"])
    assert any("other has no record of suite pgd20" in line for line in data["warnings"])
    first, second = data["runs"]
    assert (first["evaluated"], second["evaluated"]) == (True, False)
    assert first["ood"]["means"][4] == 70.5
    assert {"recipe", "model global", "record"} <= first["checksums"].keys()
    assert first["checksums"]["recipe"] == Run(reported.parent / "attacked").identity


def test_class_accuracies_and_losses_of_points_are_those_of_their_verdicts(reported: Path) -> None:
    (dial,) = page_data(reported)["dials"]
    for point in dial["points"]:
        shares = [value for value in point["by_class"]["natural"] if value is not None]
        assert min(shares) <= point["natural"] <= max(shares)
        assert point["losses"]["natural"] < max(point["losses"][threat] for threat in dial["threats"])


def test_a_page_asks_nothing_of_the_network(reported: Path) -> None:
    text = reported.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "default-src 'none'" in text


def test_a_run_that_was_only_trained_has_a_page_that_says_what_is_missing(
    cli: Cli, copied: Path, tmp_path: Path
) -> None:
    outcome = cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    data = page_data(tmp_path / "page.html")
    assert (data["groups"], data["dials"], data["gallery"], data["warnings"]) == ([], [], [], [])
    assert "not been attacked yet" in data["lead"][1]
    text = (tmp_path / "page.html").read_text()
    assert not data["runs"][0]["about"].endswith("(not finished)")
    for words in ("These runs have not been attacked", "--suite ood", "--suite curve", "No model was looked at"):
        assert words in text
    assert data["runs"][0]["commands"][0].startswith("generalist ")
    (copied / "summary.json").unlink()
    assert cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet").code == 0
    (run,) = page_data(tmp_path / "page.html")["runs"]
    assert run["about"].endswith("(not finished)")
    assert run["cost"]["seconds"] is None


def test_a_broken_record_is_named_and_left_out(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("eval", copied, "--global", "--n", "20", "--quiet").code == 0
    broken = copied / "evaluations" / "global-pgd20.json"
    broken.write_text(broken.read_text().replace('"natural": ', '"natural": 1', 1))
    outcome = cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet")
    assert outcome.code == 0
    assert "was changed since it was written" in outcome.err
    data = page_data(tmp_path / "page.html")
    assert data["groups"] == []
    assert any(str(broken) in line for line in data["warnings"])
    assert "not been attacked yet" in data["lead"][-1]


@pytest.mark.parametrize("text", ["{", "[]", json.dumps(sealed({"suite": "ood", "images": 1, "corruptions": {}}))])
def test_a_broken_measurement_is_told_and_left_out(cli: Cli, copied: Path, tmp_path: Path, text: str) -> None:
    (copied / "evaluations").mkdir(exist_ok=True)
    Run(copied).record_file("ood").write_text(text)
    assert cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet").code == 0
    data = page_data(tmp_path / "page.html")
    assert data["runs"][0]["ood"] is None
    assert len(data["warnings"]) == 1


def test_a_dial_of_another_version_is_named_and_left_out(cli: Cli, copied: Path, tmp_path: Path) -> None:
    Run(copied).write_dial({"points": []})
    assert cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet").code == 0
    data = page_data(tmp_path / "page.html")
    assert data["dials"] == []
    assert "dial the run again" in data["warnings"][0]


def test_a_broken_dial_is_named_and_left_out(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("dial", copied, *FEW).code == 0
    last = copied / "dial" / "last.json"
    last.write_text(last.read_text().replace('"images": 20', '"images": 21', 1))
    assert cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet").code == 0
    data = page_data(tmp_path / "page.html")
    assert data["dials"] == []
    assert any(str(last) in line for line in data["warnings"])


def test_a_mixture_of_the_dial_is_called_one(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("dial", copied, *FEW, "--export", tmp_path / "mixed").code == 0
    assert (copied / "figures" / "dial-ways.png").is_file()
    outcome = cli("report", tmp_path / "mixed", "--out", tmp_path / "page.html", "--images", "10", "--quiet")
    assert outcome.code == 0, outcome.err
    data = page_data(tmp_path / "page.html")
    assert "was mixed by the dial" in data["lead"][0]
    assert data["runs"][0]["about"].startswith("mixture by the dial: ")
    assert data["runs"][0]["curves"]["panels"] == {}
    assert data["runs"][0]["commands"][0].startswith("generalist dial ")


def test_fifty_runs_with_seeds_make_one_page(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("eval", copied, "--global", "--n", "20", "--quiet").code == 0
    shutil.rmtree(copied / "checkpoints")
    runs = [Path(shutil.copytree(copied, tmp_path / f"run-{number}")) for number in range(50)]
    outcome = cli("report", *runs, "--out", tmp_path / "page.html", "--images", "0", "--quiet")
    assert outcome.code == 0, outcome.err
    data = page_data(tmp_path / "page.html")
    (over,) = data["groups"][0]["seeds"]
    assert len(over["runs"]) == 50
    assert set(over["sd"].values()) == {0.0}
    assert (tmp_path / "page.html").stat().st_size < 6e6


def test_a_run_of_the_papers_has_their_values_beside_it(cli: Cli, tmp_path: Path) -> None:
    run = write_run(tmp_path / "at", "cifar10-resnet18-at", record(82, 48, 60))
    assert cli("report", run, "--out", tmp_path / "page.html", "--quiet").code == 0
    (group,) = page_data(tmp_path / "page.html")["groups"]
    assert group["paper"] == "Generalist++, table I"
    assert group["rows"][0]["paper"]["natural"] == pytest.approx(82, abs=5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "is not a run folder"),
        (["{run}", "{run}"], "is given twice"),
        (["{run}", "--out", "{run}"], "is a folder"),
        (["{run}", "--paper", "IX"], "unknown paper table"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, copied: Path, arguments: list[str], said: str) -> None:
    outcome = cli("report", *(part.format(run=copied) for part in arguments), "--quiet")
    assert outcome.code == 2
    (line,) = outcome.errors
    assert said in line
