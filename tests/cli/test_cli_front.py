"""`generalist front`: run folders in, tables and figures out, nothing trained or attacked."""

import csv
import json
from pathlib import Path

import pytest
from cli_cases import Cli
from PIL import Image

from compare_cases import record, write_run
from generalist.recipes.catalogue import load_recipe

LINF = ("linf:8/255",)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    found = []
    rows = [("at", "", 80.0, 50.0), ("half", "", 82.0, 48.0), ("half", "0.25", 88.0, 42.0), ("nt", "", 95.0, 0.0)]
    for seed in (0, 1):
        for method, beta, natural, robust in rows:
            changes = [f"learners.linf.objective.beta={beta}"] if beta else []
            recipe = load_recipe(f"cifar10-resnet18-{method}", [*changes, f"seed={seed}"])
            one = record(natural + seed, robust, suite="quick", threats=LINF)
            found.append(write_run(tmp_path / "runs" / f"{method}{beta}-s{seed}", recipe, one))
    return found


def test_a_table(cli: Cli, runs: list[Path]) -> None:
    outcome = cli("front", *runs, "--at", "84,86", "--baseline", "half")
    assert outcome.code == 0, outcome.err
    head, *lines = outcome.out.splitlines()
    assert head.split()[:6] == ["front", "points", "at", "84", "at", "86"]
    half = next(line for line in lines if line.startswith("half"))
    assert "46.5 ± 0.7 (+0.0 ± 0.0)" in half  # 46 with seed 0 and 47 with seed 1
    assert "suite quick; seeds 0 1" in outcome.out
    assert outcome.err == ""


def test_every_file(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = [part for kind in ("csv", "json", "markdown") for part in (f"--{kind}", out / f"table.{kind}")]
    outcome = cli("front", *runs, *files, "--figure", out / "fronts")
    assert outcome.code == 0, outcome.err
    with (out / "table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    assert json.loads((out / "table.json").read_text())["seeds"] == [0, 1]
    assert (out / "table.markdown").read_text().startswith("| front |")
    assert Image.open(out / "fronts.png").format == "PNG"
    assert (out / "fronts.svg").read_text().startswith("<?xml")
    assert cli("front", *runs, "--figure", out / "alone.svg").code == 0
    assert len(list(out.iterdir())) == 6


def test_json_goes_to_standard_output(cli: Cli, runs: list[Path]) -> None:
    found = cli("front", *runs, "--json", "--reference", "50,10").json
    assert found["hypervolume_reference"] == [50, 10]
    assert [row["front"] for row in found["fronts"]] == ["at", "half", "nt"]


def test_groups(cli: Cli, runs: list[Path]) -> None:
    outcome = cli("front", "--group", f"base={runs[0]},{runs[1]}", "--group", f"other={runs[2]}", "--json")
    assert [(row["front"], row["points"]) for row in outcome.json["fronts"]] == [("base", 2), ("other", 1)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--at", "80,x"], "--at takes numbers with commas between them, got '80,x'"),
        (["--at", "200"], "from 0 to 100, got 200"),
        (["--reference", "0"], "the reference point is two percentages"),
        (["--group", "mine"], "--group takes NAME=RUN,RUN…, got 'mine'"),
        (["--group", "mine=gone-*"], "group mine: no run is called or lies at 'gone-*'"),
        (["--baseline", "halff"], "unknown front 'halff'; did you mean 'half'?"),
        (["--suite", "quik"], "unknown suite 'quik'; did you mean 'quick'?"),
        (["--threat", "l2"], "unknown threat 'l2'"),
        (["--threat", "linf:x"], "'x' is not a number or a fraction"),
        (["--split", "valid"], "unknown split 'valid'"),
        (["--split", "validation"], "keeps no dial"),
        (["--figure", "a.jpg"], "--figure writes a .png or .svg file"),
        (["--csv", "."], "is a folder"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, runs: list[Path], options: list[str], said: str) -> None:
    outcome = cli("front", *runs, *options)
    assert outcome.code == 2
    (line,) = outcome.errors
    assert said in line
    assert outcome.out == ""


def test_nothing_given(cli: Cli) -> None:
    outcome = cli("front")
    assert outcome.code == 2
    assert "nothing to compare: give run folders" in outcome.errors[0]
