"""`generalist compare`: run folders in, tables out, nothing trained or attacked."""

import csv
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_cases import Cli, Outcome
from PIL import Image

import generalist
from compare_cases import record, write_run
from generalist.models import build_model, save_model

Edit = Callable[[dict[str, Any]], dict[str, Any]]
AT, T = "cifar10-resnet18-at", "cifar10-resnet18-generalist-t"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    at = write_run(tmp_path / "runs" / "at", AT, record(84.0, 44.0, 57.0), record(84.0, 48.0, 58.0, suite="pgd20"))
    return [at, write_run(tmp_path / "runs" / "t", T, record(88.0, 43.0, 63.0))]


def refused(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 2, outcome.err
    (line,) = outcome.errors
    for fragment in fragments:
        assert fragment in line
    assert outcome.out == ""


def test_a_table(cli: Cli, runs: list[Path]) -> None:
    outcome = cli("compare", *runs, "--paper", "I")
    assert outcome.code == 0, outcome.err
    head, at, t, *_ = outcome.out.splitlines()
    assert head.split()[:2] == ["run", "natural"]
    assert at.startswith(AT)
    assert "84.00+ (84.32)" in at
    assert "88.00* (88.03)" in t
    assert "RMC" in outcome.out
    assert "suite autoattack" in outcome.out
    assert outcome.err == ""


def test_no_value_of_trades_beside_a_generalist_of_trades_learners(cli: Cli, tmp_path: Path) -> None:
    names = ["trades", "generalist-d-trades"]
    found = record(84.0, 44.0, 57.0, suite="paper")
    both = [write_run(tmp_path / name, f"cifar10-resnet18-{name}", found) for name in names]
    trades, generalist = cli("compare", *both, "--paper", "1a", "--json").json["runs"]
    assert (trades["method"], generalist["method"]) == tuple(names)
    assert trades["paper"]
    assert generalist["paper"] == {}
    _, first, second, *_ = cli("compare", *both, "--paper", "1a").out.splitlines()
    assert re.search(r"\(\d", first)
    assert not re.search(r"\(\d", second)


def test_every_file(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    files = {kind: tmp_path / "out" / f"table.{kind}" for kind in ("csv", "json", "latex", "markdown")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", path)]
    outcome = cli("compare", *runs, "--paper", "I", *options, "--scatter", tmp_path / "out" / "s.png")
    assert outcome.code == 0, outcome.err
    with files["csv"].open() as file:
        assert [row["paper:mean over norms"] for row in csv.DictReader(file)] == ["50.68", "53.32"]
    assert json.loads(files["json"].read_text())["runs"][1]["run"] == str(runs[1])
    assert r"\textbf{88.00}" in files["latex"].read_text()
    assert "**88.00**" in files["markdown"].read_text()
    assert Image.open(tmp_path / "out" / "s.png").format == "PNG"
    assert len(list((tmp_path / "out").iterdir())) == 5


@pytest.mark.parametrize("place", [0, 1, 3])
def test_json_goes_to_standard_output_wherever_it_is_put(cli: Cli, runs: list[Path], place: int) -> None:
    arguments = [*runs, "--paper=I"]
    found = cli("compare", *arguments[:place], "--json", *arguments[place:]).json
    assert [run["method"] for run in found["runs"]] == ["at", "generalist-t"]
    assert cli("compare", *arguments, "--json", "-").json == found


def test_python_gets_the_same(cli: Cli, runs: list[Path]) -> None:
    assert generalist.compare(runs, paper="I").record() == cli("compare", *runs, "--paper", "I", "--json").json


def test_the_strongest_common_suite_is_taken(cli: Cli, tmp_path: Path) -> None:
    both = [record(84.0, 48.0, 58.0, suite="pgd20"), record(84.0, 45.0, 57.0, suite="quick")]
    a = write_run(tmp_path / "a", AT, *both, record(84.0, 44.0, 56.0))
    b = write_run(tmp_path / "b", T, *both)
    assert cli("compare", a, b, "--json").json["suite"] == "quick"
    assert cli("compare", a, b, "--suite", "pgd20", "--json").json["suite"] == "pgd20"
    assert cli("compare", a, "--json").json["suite"] == "autoattack"


def test_a_missing_record_names_the_command(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    refused(
        cli("compare", *runs, "--suite", "pgd20"),
        "no record of suite pgd20",
        f"generalist eval {runs[1]} --suite pgd20 --n 100",
    )
    new = write_run(tmp_path / "a new one", T)
    refused(cli("compare", *runs, new), f"generalist eval '{new}' --suite autoattack --n 100")
    refused(cli("compare", new), f"{new} has no record", f"generalist eval '{new}' --suite pgd20")


def test_the_command_names_threats_that_are_not_the_runs_own(cli: Cli, tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", AT, record(84.0, 44.0, threats=("linf:4/255",)))
    b = write_run(tmp_path / "b", T)
    refused(cli("compare", a, b), f"generalist eval {b} --suite autoattack --threat linf:4/255 --n 100")


def test_runs_evaluated_differently_are_refused_and_nothing_is_written(cli: Cli, tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", AT, record(84.0, 44.0, 57.0))
    b = write_run(tmp_path / "b", T, record(88.0, 43.0, 63.0, images=200))
    refused(cli("compare", a, b, "--csv", "c.csv"), AT, T, "different numbers of images: 100 and 200")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (["--paper", "IIII"], ["paper table 'IIII'", "did you mean 'III'?"]),
        (["--suite", "autoatack"], ["suite 'autoatack'", "did you mean 'autoattack'?"]),
        (["--scatter", "s.pdf"], ["--scatter", ".png or .svg", "s.pdf"]),
    ],
)
def test_mistakes_are_one_line(
    cli: Cli, runs: list[Path], tmp_path: Path, options: list[str], fragments: list[str]
) -> None:
    refused(cli("compare", *runs, *options, "--csv", "c.csv"), *fragments)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_folders_that_are_no_runs_or_given_twice(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    refused(cli("compare", tmp_path), "not a run folder")
    refused(cli("compare", runs[0], runs[0].parent / "." / "at"), "given twice")
    (runs[0] / "evaluations" / "global-autoattack.json").write_text("{")
    refused(cli("compare", *runs), "global-autoattack.json", "not readable JSON", "run generalist eval again")
    (runs[0] / "evaluations" / "global-autoattack.json").write_text("{}")
    refused(cli("compare", *runs), "global-autoattack.json", "not an evaluation record")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda one: one | {"natural": 99.0}, "figures that are not those of its verdicts"),
        (lambda one: one | {"accuracy": one["accuracy"] | {"linf:8/255": {"AA": 99.0}}}, "not those of its verdicts"),
        (lambda one: one | {"per_image": one["per_image"] | {"natural": [1] * 100}}, "not those of its verdicts"),
        (lambda one: one | {"per_image": one["per_image"] | {"natural": [1] * 99}}, "not an evaluation record"),
        (lambda one: one | {"images": "many"}, "not an evaluation record"),
    ],
)
def test_figures_are_recomputed_from_the_verdicts(cli: Cli, tmp_path: Path, edit: Edit, says: str) -> None:
    """Sealed anew after the edit, and as an older version left it, without a digest."""
    whole = record(84.0, 44.0, 57.0)
    refused(cli("compare", write_run(tmp_path / "sealed", AT, edit(whole))), "global-autoattack.json", says)
    old = write_run(tmp_path / "old", AT, whole)
    file = old / "evaluations" / "global-autoattack.json"
    without = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("digest", "columns")}
    file.write_text(json.dumps(without | {"stages": {label: {} for label in ("AA",)}}))
    assert cli("compare", old).code == 0
    file.write_text(json.dumps(edit(without)))
    refused(cli("compare", old), "global-autoattack.json", says)


def test_a_record_whose_digest_was_removed_is_refused(cli: Cli, runs: list[Path]) -> None:
    file = runs[0] / "evaluations" / "global-autoattack.json"
    forged = record(100.0, 100.0, 100.0)
    assert "digest" not in forged
    file.write_text(json.dumps(forged))
    refused(cli("compare", *runs), str(file), "it has no digest")


def test_an_edited_record_is_refused(cli: Cli, runs: list[Path]) -> None:
    file = runs[0] / "evaluations" / "global-autoattack.json"
    file.write_text(file.read_text().replace('"selected_by": "validation"', '"selected_by": "last"'))
    refused(cli("compare", *runs), str(file), "its digest differs", "run generalist eval again")


def test_a_damaged_summary_is_named_and_the_comparison_goes_on(cli: Cli, runs: list[Path]) -> None:
    file = runs[0] / "summary.json"
    file.write_text(file.read_text().replace("60.0", "1.0"))
    outcome = cli("compare", *runs, "--json")
    assert outcome.code == 0
    assert f"warning: {file} was changed since it was written" in outcome.err
    assert outcome.json["runs"][0]["cost"] is None


def test_what_is_no_run_is_left_out_with_a_word(cli: Cli, runs: list[Path]) -> None:
    folder = runs[0].parent
    (folder / "notes.txt").write_text("")
    (folder / "empty").mkdir()
    outcome = cli("compare", *sorted(folder.iterdir()), "--json")
    assert outcome.code == 0
    assert [Path(run["run"]).name for run in outcome.json["runs"]] == ["at", "t"]
    assert outcome.err.splitlines() == [
        f"warning: left out, not a run folder: {folder / 'empty'}, {folder / 'notes.txt'}"
    ]
    refused(cli("compare", folder / "empty", folder / "notes.txt"), "nothing to compare", "notes.txt")
    refused(cli("compare", *runs, folder / "misspelt"), "misspelt is not a run folder")


def test_equal_recipes_are_told_apart(cli: Cli, tmp_path: Path) -> None:
    folders = [write_run(tmp_path / seed / "at", AT, record(84.0, 44.0, 57.0)) for seed in ("seed0", "seed1")]
    names = [run["name"] for run in cli("compare", *folders, "--json").json["runs"]]
    assert names == [f"{AT} (seed0)", f"{AT} (seed1)"]


def test_a_network_of_another_width_is_not_the_papers(cli: Cli, tmp_path: Path) -> None:
    thin = generalist.load_recipe(AT, ["model.width=16"])
    outcome = cli("compare", write_run(tmp_path / "thin", thin, record(70.0, 30.0, 50.0)), "--paper", "I")
    assert outcome.code == 0
    assert "(84.32)" not in outcome.out
    assert "nothing to put beside the runs in Generalist++, table I" in outcome.out


def test_selection_on_the_test_split_is_warned_of(cli: Cli, runs: list[Path], tmp_path: Path) -> None:
    chosen = write_run(tmp_path / "chosen", "cifar10-resnet18-nt", record(95.0, 0.0, 0.0), select="test")
    lines = cli("compare", *runs, chosen).out.splitlines()
    assert [line for line in lines if line.startswith("warning: ") and "test split" in line and "-nt" in line]
    assert lines[3].endswith("test (!)")


def test_a_run_that_is_not_finished_has_no_cost(cli: Cli, tmp_path: Path) -> None:
    half = write_run(tmp_path / "half", AT, record(84.0, 44.0, 57.0), seconds=None)
    (found,) = cli("compare", half, "--json").json["runs"]
    assert found["cost"] is None
    assert found["selected_by"] == "validation"


def test_what_eval_writes_is_what_compare_reads(cli: Cli, fast: Path, tmp_path: Path) -> None:
    recipe = generalist.load_recipe("digits-at", ["model.width=4", "training.device=cpu"])
    run = write_run(tmp_path / "run", recipe)
    model = build_model(recipe.model.name, classes=10, channels=1, size=8, width=4)
    save_model(model, run / "models" / "global")
    assert cli("eval", run, "--suite", fast, "--n", "20").code == 0
    for name in ("fast", fast):
        found = cli("compare", run, "--suite", name, "--json").json
        assert found["images"] == 20
        assert list(found["runs"][0]["accuracy"])[:2] == ["natural", "fast linf:3/20"]
        assert found["notes"] == []
    file = run / "models" / "global.safetensors"
    os.utime(file, (2**31, 2**31))
    assert cli("compare", run, "--suite", "fast", "--json").json["notes"] == []
    other = build_model(recipe.model.name, classes=10, channels=1, size=8, width=4, seed=1)
    save_model(other, run / "models" / "global")
    os.utime(file, (2**31, 2**31))
    (note,) = cli("compare", run, "--suite", "fast", "--json").json["notes"]
    assert "evaluate it again" in note


def test_a_record_with_the_former_name_of_the_mean_is_read(cli: Cli, runs: list[Path]) -> None:
    path = runs[0] / "evaluations" / "global-autoattack.json"
    record = json.loads(path.read_text().replace("mean over norms", "mean union"))
    old_version = {key: value for key, value in record.items() if key not in ("digest", "columns")}
    path.write_text(json.dumps(old_version))
    old, new = cli("compare", *runs, "--json").json["runs"]
    assert old["accuracy"]["mean over norms"] == 50.5
    assert old["accuracy"].keys() == new["accuracy"].keys()
