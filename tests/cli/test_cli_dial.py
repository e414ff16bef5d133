"""`generalist dial`: what it prints, writes and refuses."""

import csv
import json
from pathlib import Path

import pytest
from cli_cases import Cli

from generalist.runs.folder import Run

FEW = ("--points", "6", "--images", "20", "--quiet")


def test_a_front_and_its_figure(cli: Cli, copied: Path) -> None:
    outcome = cli("dial", copied, *FEW)
    assert outcome.code == 0, outcome.err
    head, columns, *_ = outcome.out.splitlines()
    assert head.startswith("digits-generalist-t: front of 6 mixtures of linf, natural and l2, 20 images of the valid")
    assert columns.split()[:4] == ["w(linf)", "w(natural)", "w(l2)", "natural"]
    assert "chosen" not in outcome.out
    assert (copied / "figures" / "dial.png").is_file()
    assert (copied / "figures" / "dial.svg").is_file()
    assert outcome.errors == []


def test_choose_and_export(cli: Cli, copied: Path, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"found.{kind}" for kind in ("json", "csv")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", path)]
    outcome = cli("dial", copied, *FEW, "--maximise", "natural", "--export", tmp_path / "picked", *options)
    assert outcome.code == 0, outcome.err
    assert "chosen (most natural): " in outcome.out
    assert "test split" in outcome.out
    record = json.loads(files["json"].read_text())
    best = max(point["natural"] for point in record["points"])
    assert record["chosen"]["natural"] == best
    assert record["export"]["run"] == str(tmp_path / "picked")
    with files["csv"].open() as file:
        assert max(float(row["natural"]) for row in csv.DictReader(file)) == best
    run = Run(tmp_path / "picked")
    assert run.record("pgd20")["natural"] == record["export"]["test"]["natural"]
    assert cli("eval", run.folder, "--quiet").code == 0
    assert cli("eval", copied, "--global", "--quiet").code == 0
    assert cli("compare", run.folder, copied).code == 0


def test_an_endpoint_as_the_answer_is_said(cli: Cli, copied: Path) -> None:
    outcome = cli("dial", copied, "--points", "3", "--images", "20", "--quiet", "--maximise", "mean")
    assert "no mixture does better than the endpoint" in outcome.out


def test_json_goes_to_standard_output(cli: Cli, copied: Path) -> None:
    assert len(cli("dial", copied, *FEW, "--json").json["points"]) == 6


def test_progress_and_points_that_are_known(cli: Cli, copied: Path) -> None:
    cli("dial", copied, *FEW)
    outcome = cli("dial", copied, "--points", "6", "--images", "20")
    assert "6 of 6 points are known already" in outcome.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--between", "lnf,natural"], "did you mean 'linf'"),
        (["--between", "linf"], "two endpoints or more"),
        (["--points", "2"], "at least the number of endpoints, 3, got 2"),
        (["--beyond", "0.5"], "beyond is 1"),
        (["--by", "modules"], "did you mean 'module'"),
        (["--attack", "pgd2"], "did you mean 'pgd20'"),
        (["--maximise", "naturl"], "did you mean 'natural'"),
        (["--l1-at-least", "10"], "no threat of the norm l1"),
        (["--natural-at-least", "101"], "from 0 to 100"),
        (["--linf-at-least", "100", "--images", "5", "--points", "3"], "no mixture reaches linf ≥ 100; the nearest is"),
        (["--export", "full"], "full is not empty"),
        (["--points", "0"], "--points"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, copied: Path, options: list[str], said: str) -> None:
    Path("full").mkdir()
    Path("full", "mine").write_text("")
    outcome = cli("dial", copied, *options, "--quiet")
    assert outcome.code == 2
    (line,) = outcome.errors
    assert said in line
    assert outcome.out == ""
    assert not (copied / "figures" / "dial.png").exists()


def test_no_run(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("dial", tmp_path / "nothing")
    assert outcome.code == 2
    assert "is not a run folder" in outcome.errors[0]


def test_a_chosen_point_stays_so_until_another_is_chosen(cli: Cli, copied: Path) -> None:
    def chosen() -> object:
        record = Run(copied).dial_record
        assert record is not None
        return record.get("chosen")

    cli("dial", copied, *FEW, "--maximise", "natural")
    first = chosen()
    assert first
    cli("dial", copied, *FEW)
    assert chosen() == first, "a look without a wish"
    cli("dial", copied, *FEW, "--maximise", "linf")
    assert chosen() != first
    cli("dial", copied, "--points", "6", "--images", "15", "--quiet")
    assert chosen() is None, "other images, so other figures"
