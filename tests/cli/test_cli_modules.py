"""`generalist modules`: a table, JSON, CSV and figures; mistakes are one line."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_cases import Cli

from generalist.runs.folder import Run
from run_cases import wait_for

QUICK = ("--epochs", "1", "--images", "12", "--workers", "1")
UNITS = ["conv1", "conv2", "conv3", "conv4", "conv5", "fc"]


def test_a_run_is_measured_shown_and_written(cli: Cli, copied: Path, tmp_path: Path) -> None:
    shown = cli("modules", copied, *QUICK)
    assert (shown.code, shown.err) == (0, shown.err)
    assert all(unit in shown.out for unit in (*UNITS, "the whole network", "criticality", "price", "PGD2 linf:3/20"))
    assert "proposed" in shown.out.splitlines()[-2]
    figures = Run(copied).modules.figure_files()
    assert all(path.is_file() and str(path) in shown.out for path in figures)
    assert {path.suffix for path in figures} == {".png", ".svg"}

    as_json = cli("modules", copied, *QUICK, "--json", "--csv", "rows.csv")  # nothing is measured again
    assert as_json.code == 0
    assert as_json.err == ""
    rows = as_json.json["rows"]
    assert [row["name"] for row in rows if row["kind"] == "module"] == UNITS
    with open(tmp_path / "rows.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [line["module"] for line in found] == [row["name"] for row in rows]
    assert [float(line["natural"]) for line in found] == [row["natural"]["points"] for row in rows]
    assert [line["proposed"] == "yes" for line in found] == [row["proposed"] for row in rows]


def test_mistakes_are_one_line(cli: Cli, trained: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, fragments in {
        ("nowhere",): ("nowhere",),
        ("digits-at",): ("no trained weights", "generalist train digits-at"),
        (trained.folder, "--model", "l1"): ("'l1'", "global, linf, natural, l2"),
        (trained.folder, "--set", "seed=1"): ("--set",),
        (trained.folder, "--lr", "-1"): ("lr must be above 0", "got -1.0"),
        (trained.folder, "--workers", "0"): ("--workers",),
        (trained.folder, "--threat", "linf:0"): ("eps must be > 0",),
        (trained.folder, "--out", "file"): ("file is a file",),
        ("digits-at", "--set", f"init.from={trained.folder}"): ("--out FOLDER",),
        (tmp_path,): ("is not a run folder",),
    }.items():
        outcome = cli("modules", *arguments)
        assert (outcome.code, len(outcome.errors), outcome.out) == (2, 1, ""), outcome.err
        assert all(fragment in outcome.errors[0] for fragment in fragments), outcome.errors


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_says_that_the_same_command_goes_on(copied: Path) -> None:
    endless = ("--epochs", "5000", "--images", "12")  # a minute or more: nothing is over before the signal arrives
    command = [sys.executable, "-m", "generalist", "modules", str(copied), *endless]
    process = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(Run(copied).modules.measured_file("x").with_name("*.json"), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "goes on from here" in err
    assert "Traceback" not in err
