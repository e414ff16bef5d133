"""What the commands print, and to where."""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from cli_cases import SMALL, TINY, Cli

import generalist
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.schema import parse_recipe
from generalist.recipes.shipped import recipe_names, recipe_parts
from generalist.runs import doctor
from generalist.runs.folder import Run
from generalist.training.precision import pick_device
from run_cases import exit_code, forked_command

ESCAPE = "\x1b"


def test_no_command_is_help(cli: Cli) -> None:
    outcome = cli()
    assert outcome.code == 0
    for command in ("train", "eval", "compare", "dial", "recipes", "doctor"):
        assert command in outcome.out


@pytest.mark.parametrize(
    "command", [[], ["train"], ["eval"], ["compare"], ["dial"], ["recipes"], ["recipes", "show"], ["doctor"]]
)
def test_help(cli: Cli, command: list[str]) -> None:
    outcome = cli(*command, "--help")
    assert outcome.code == 0
    assert "Usage: generalist " + " ".join(command) in outcome.out


def test_version(cli: Cli) -> None:
    said = cli("--version").out
    assert said.startswith(f"generalist {generalist.__version__} (torch {torch.__version__}, Python 3.")
    assert said.endswith(f", {pick_device()})\n")


def test_recipes_are_listed(cli: Cli) -> None:
    assert cli("recipes", "--json").json == recipe_names()
    table = cli("recipes").out
    assert ESCAPE not in table
    for part in recipe_parts():
        for name, description in part.items():
            assert name in table
            assert description in table


def test_a_recipe_is_shown_whole(cli: Cli) -> None:
    args = ["recipes", "show", "digits-generalist-t", "--set", "training.epochs=3"]
    recipe = load_recipe("digits-generalist-t", ["training.epochs=3"])
    assert parse_recipe(yaml.safe_load(cli(*args).out)) == recipe
    assert cli(*args, "--json").json == recipe.plain()


def test_a_setting_of_ones_own_with_a_method(
    cli: Cli, npz: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = npz()
    data.with_name("mine.yaml").write_text("extends: digits\ndata: {name: npz, root: data.npz}\n")
    mine = data.with_name("mine.yaml")
    refused = cli("train", mine)
    assert refused.code == 2
    assert "needs a method: add --method" in refused.err
    assert cli("recipes", "show", mine, "--method", "at", "--json").json["name"] == "mine-at"
    outcome = cli("train", mine, "--method", "at", *TINY)
    assert outcome.code == 0, outcome.err
    assert Run(Path("runs/mine-at")).recipe.data.root == str(data)
    assert cli("eval", "runs/mine-at", "--n", "5").code == 0
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.01)
    assert cli("doctor", mine, "--method", "nt", *TINY, "--json").json["probe"]["recipe"] == "mine-nt"


def test_dry_run_tells_what_a_partial_learner_trains_and_when(cli: Cli, tmp_path: Path) -> None:
    said = cli("train", "digits-generalist-late-d", "--set", "model.width=4", "--dry-run").out
    facts = cli("train", "digits-generalist-late-d", "--set", "model.width=4", "--dry-run", "--json").json
    count = facts["learners"]["natural"]["trains"]["parameters"]
    assert "linf trains everything, epochs 1–19" in said
    assert f"natural trains conv5, bn5, fc ({count:,} parameters), epochs 20–24" in said
    assert " trains " not in cli("train", "digits-generalist-t", "--dry-run").out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_tells_the_plan_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    plain = cli("train", "digits-generalist-t", "--dry-run")
    facts = cli("train", "digits-generalist-t", "--dry-run", "--json").json
    assert list(tmp_path.iterdir()) == []
    assert plain.code == 0
    assert ESCAPE not in plain.out
    for text in ("linf:3/20", "1222 train", "24 epochs of 19 steps", "16, 18, 20, 22"):
        assert text in plain.out
    assert {name: row["live_epochs"] for name, row in facts["learners"].items()} == {
        "linf": 24, "natural": 8, "l2": 8,
    }  # fmt: skip
    assert facts["resets_after_epochs"] == [16, 18, 20, 22]
    for sixth in zip(*(row["gamma"] for row in facts["learners"].values()), strict=True):
        assert sum(sixth) == pytest.approx(1, abs=0.002)


def test_training_prints_plain_lines_and_a_table(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("train", "digits-at", *TINY, "--out", "a folder")
    assert outcome.code == 0
    assert ESCAPE not in outcome.out + outcome.err
    assert [line.split(":")[0] for line in outcome.err.splitlines() if line.startswith("epoch")] == [
        f"epoch {epoch} {model}" for epoch in (1, 2, 3) for model in ("global", "linf")
    ]
    assert "PGD2 linf:3/20" in outcome.out
    assert "true union" not in outcome.out
    assert "generalist eval 'a folder'" in outcome.out
    again = cli("train", "digits-at", *TINY, "--out", "a folder", "--resume")
    assert again.code == 0
    assert "finished already" in again.err


def test_resuming_with_other_settings_says_which_to_repeat(cli: Cli, copied: Path) -> None:
    forgotten = ("training.epochs=3", "model.width=4")
    kept = [part for change in SMALL if change not in forgotten for part in ("--set", change)]
    outcome = cli("train", "digits-generalist-t", *kept, "--out", copied, "--resume")
    assert outcome.code == 2
    (line,) = outcome.errors
    assert "model.width is 16 here and 4 there" in line
    assert "repeat the --set of the first start: --set model.width=4 --set training.epochs=3, or give another" in line
    assert "--set" not in cli("train", "digits-generalist-t", *kept, "--out", copied).err
    assert "--set" not in cli("train", "digits-at", *kept, "--out", copied, "--resume").err
    assert cli("train", "digits-generalist-t", *TINY, "--out", copied, "--resume").code == 0


def test_quiet_training_says_nothing(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("train", "digits-nt", *TINY, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert Run(tmp_path / "runs" / "digits-nt").finished


def test_json_training_prints_the_summary_only(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("train", "digits-nt", *TINY, "--json", "--out", "run")
    assert outcome.err == ""
    assert outcome.json == {"run": "run", **json.loads((tmp_path / "run" / "summary.json").read_text())}


def test_eval_of_two_runs_of_one_name_is_one_table(cli: Cli, copied: Path, fast: Path) -> None:
    other = shutil.copytree(copied, copied.parent / "elsewhere" / copied.name)
    outcome = cli("eval", copied, other, "--n", "20", "--suite", fast, "--global")
    assert outcome.code == 0
    rows = [line for line in outcome.out.splitlines() if "/global" in line and "│" in line]
    assert len(rows) == 2
    assert f"{copied}/global" in rows[0]
    assert f"{other}/global" in rows[1]
    assert "test split, 20 images" in outcome.out


def test_eval_records_keep_the_radius_as_a_fraction(cli: Cli, copied: Path, fast: Path) -> None:
    threats = ("--threat", "linf:8/255", "--threat", "l2:0.5")
    outcome = cli("eval", copied, *threats, "--n", "30", "--suite", fast, "--learners", "--json")
    assert outcome.err == ""
    assert list(outcome.json) == [f"small-t/{name}" for name in ("global", "linf", "natural", "l2")]
    for record in outcome.json.values():
        assert list(record["accuracy"]) == ["linf:8/255", "l2:1/2", "mean over norms", "true union"]
        assert record["stages"]["PGD2"]["steps"] == 2
        assert record["images"] == 30
        unions = [record["accuracy"][row]["fast"] for row in ("true union", "mean over norms")]
        assert unions[0] <= unions[1] <= record["natural"]
    kept = json.loads((copied / "evaluations" / "global-fast.json").read_text())
    assert kept == outcome.json["small-t/global"]
    assert kept["threats"]["linf:8/255"] == {"norm": "linf", "eps": "8/255", "eps_float": 8 / 255}
    file = copied / "models" / "global.safetensors"
    assert kept["weights"] == {"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def test_eval_shows_the_cascade_and_intervals(cli: Cli, copied: Path, tmp_path: Path) -> None:
    suite = tmp_path / "two.yaml"
    suite.write_text("attacks: [{attack: pgd, steps: 2, label: PGD2}, {attack: square, queries: 9}]\n")
    outcome = cli("eval", copied, "--n", "20", "--suite", suite, "--global")
    (record,) = cli("eval", copied, "--n", "20", "--suite", suite, "--global", "--json").json.values()
    after = record["after_stages"]["l2:1"]
    told = [line for line in outcome.errors if "% robust" in line]
    assert len(told) == 4
    assert told[2].startswith(f"small-t/global: l2:1 3/4 PGD2: {after['PGD2']:.1f} % robust, ")
    low, high = record["interval_95"]["natural"]
    assert f"{record['natural']:.2f} [{low:.1f}–{high:.1f}]" in outcome.out


def test_eval_progress_stays_off_standard_output(cli: Cli, copied: Path, fast: Path) -> None:
    quiet = cli("eval", copied, "--n", "20", "--suite", fast, "--quiet")
    assert quiet.err == ""
    assert "fast linf:3/20" in quiet.out
    assert ESCAPE not in quiet.out


def test_eval_takes_the_run_folder_one_stands_in(
    cli: Cli, copied: Path, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied)
    assert list(cli("eval", ".", "--n", "5", "--suite", fast, "--global", "--json").json) == ["small-t/global"]


def test_doctor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.01)
    facts = cli("doctor", "digits-at", *TINY, "--json").json
    assert facts["device"] in ("cpu", "cuda", "mps")
    assert "train" in facts["data"]["digits"]
    assert facts["probe"]["recipe"] == "digits-at"
    table = cli("doctor", *TINY).out
    for text in ("digits-generalist-t here", "whole run", "peak memory", "one step of l2"):
        assert text in table


def test_a_signal_ends_after_a_whole_step_and_tells_how_to_go_on(tmp_path: Path) -> None:
    changes = [*TINY, "--set", "training.epochs=10000"]
    journal, log = tmp_path / "my run" / "metrics.jsonl", tmp_path / "log"
    child = forked_command(["train", "digits-nt", *changes, "--out", "my run"], log, folder=tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.read_text()):
        time.sleep(0.05)
    os.kill(child, signal.SIGTERM)
    assert exit_code(child) == 128 + signal.SIGTERM
    said = log.read_text()
    last = said.splitlines()[-1]
    assert "Traceback" not in said
    assert "nothing is lost" in last
    assert "--set training.epochs=10000 --out 'my run' --resume" in last
    assert list((tmp_path / "my run" / "checkpoints").glob("*.safetensors"))
