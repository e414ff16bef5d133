"""`generalist study` and `generalist tune` from the command line."""

import json
from pathlib import Path

import pytest
import yaml
from cli_cases import Cli

from generalist.recipes.catalogue import load_recipe
from study_cases import TINY_SETS, small_study, tiny_suite


def test_without_a_name_the_studies_are_listed(cli: Cli) -> None:
    said = cli("study")
    assert said.code == 0
    for name in (
        "gamma", "communication", "start", "averaging", "optimizers", "learning-rates", "serial-parallel", "trade-off",
        "table-1", "table-2", "table-3", "table-4", "learners", "losses", "trains", "class-wise", "readings",
    ):  # fmt: skip
        assert f"{name} " in said.out


def test_a_dry_run_of_table_1_lists_its_rows_with_their_cost(cli: Cli, tmp_path: Path) -> None:
    said = cli("study", "table-1", "--setting", "cifar10-resnet18", "--seeds", "1", "--dry-run", "--json")
    trials = said.json["trials"]
    assert len(trials) == 15
    assert all(trial["training_seconds"] > 3600 and trial["evaluation_seconds"] > 3600 for trial in trials)
    by_name = {trial["trial"]: trial["total_seconds"] for trial in trials}
    assert by_name["RMC, seed 0"] > 1.5 * by_name["AT, seed 0"]  # two networks come before it
    assert not list(tmp_path.iterdir())
    table = cli("study", "table-1", "--setting", "cifar10-resnet18", "--seeds", "1", "--dry-run", "--suite", "pgd20")
    assert "Generalist-T (NT + ℓ∞ + ℓ2), seed 0" in table.out
    assert "15 trials, 0 of them done; the rest takes about" in table.out


def test_a_users_own_study(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**small_study(suite=tiny_suite(tmp_path)), "name": "mine"}))
    said = cli("study", "mine.yaml", "--storage", "sqlite:///mine.db")
    assert said.code == 0, said.err
    assert "mine: two rows" in said.out
    assert "table and figure: studies/mine" in said.out
    assert "mine: 2 trials, 0 of them done; the rest takes about" in said.err
    again = cli("study", "mine.yaml", "--storage", "sqlite:///mine.db", "--json")
    assert [row["label"] for row in again.json["rows"]] == ["c = 1", "c = 2"]
    assert again.err == ""
    listed = cli("study", "mine.yaml", "--storage", "sqlite:///mine.db", "--dry-run")
    assert listed.out.count(" done ") >= 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("comunication",), "unknown study 'comunication'; did you mean 'communication'?"),
        (("no-such-thing-at-all",), "unknown study 'no-such-thing-at-all'; `generalist study` lists the shipped ones"),
        (("gone.yaml",), "there is no study file gone.yaml"),
        (("communication", "--setting", "digit"), "unknown setting 'digit'; did you mean 'digits'?"),
        (("communication", "--setting", "digits", "--set", "mixing.evry=2"), "unknown field of mixing: 'evry'"),
        (("communication", "--setting", "digits", "--suite", "pgd21"), "unknown suite 'pgd21'"),
        (("communication", "--setting", "digits", "--budget", "1s"), "a budget of 1s is below one trial"),
        (("communication", "--setting", "digits", "--budget", "soon"), "a budget is a time such as 2h"),
        (
            ("communication", "--setting", "digits", "--storage", "postgresql+pg8000://a:b@127.0.0.1:1/c"),
            "the storage postgresql+pg8000://a:***@127.0.0.1:1/c cannot be reached",
        ),
        (("communication", "--setting", "cifar10-mini", "--root", "empty", "--yes"), "cifar10"),
        (("communication", "--seeds", "1"), "would take about"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    said = cli("study", *arguments)
    assert said.code == 2
    assert complaint in said.err
    assert len(said.errors) == 1
    assert not (tmp_path / "studies" / "runs").exists()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"grid": {"mixing.every": [1]}}, "unknown field of mixing: 'every'"),
        ({"grid": {"mixing.every_epochs": []}}, "takes 1 to 200 values"),
        ({"colums": ["natural"]}, "unknown field of study 'mine': 'colums'; did you mean 'columns'?"),
        ({"columns": ["natrual"]}, "unknown column of study mine: 'natrual'; did you mean 'natural'?"),
        ({"baseline": "c = 9"}, "unknown baseline of study mine: 'c = 9'"),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, "two rows are called 'a'"),
        ({"variants": [{"name": "a", "gird": {}}]}, "gird"),
        ({"figure": {"kind": "pie"}}, "figure.kind"),
        ({"figure": {"kind": "lines"}}, "a figure of lines needs x"),
        ({"recipe": "digits-nope"}, "unknown recipe 'digits-nope'"),
        ({"recipe": None}, "each row needs a recipe"),
        ({"seeds": 0}, "seeds"),
        ({"paper": "IX"}, "unknown paper table 'IX'"),
        ({"in": 3}, "in takes fields by setting"),
        ({"name": "a/b"}, "a study's name is given to files"),
    ],
)
def test_mistakes_in_a_study_are_one_line(cli: Cli, fields: dict[str, object], complaint: str, tmp_path: Path) -> None:
    raw = {key: value for key, value in {**small_study(name="mine"), **fields}.items() if value is not None}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    said = cli("study", "mine.yaml")
    assert said.code == 2, said
    assert complaint in said.err
    assert len(said.errors) == 1


def test_setting_goes_with_studies_that_have_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(small_study()))
    assert "has recipes of its own" in cli("study", "mine.yaml", "--setting", "digits").err


def test_tune_finds_a_front_and_writes_the_recipe(cli: Cli, tmp_path: Path) -> None:
    said = cli("tune", "digits-generalist-late-t", "--trials", "3", *TINY_SETS, "--out", "found")
    assert said.code == 0, said.err
    assert "on the front" in said.out
    file = tmp_path / "found" / "digits-generalist-late-t-tuned.yaml"
    assert f"written to {Path('found') / file.name}" in said.out
    recipe = load_recipe(file)
    assert recipe.training.epochs == 2
    assert "# was " in file.read_text() or "trial 0" in said.out.splitlines()[-2]
    assert (tmp_path / "found" / "figure.png").read_bytes()[:4] == b"\x89PNG"
    again = cli("tune", "digits-generalist-late-t", "--trials", "3", *TINY_SETS, "--out", "found", "--json")
    record = json.loads(again.out)
    assert len(record["rows"]) == 3
    assert record["recipe"].endswith("-tuned.yaml")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "a search needs an end"),
        (("--budget", "0.001s"), "is below one trial"),
        (("--trials", "1", "--objectives", "natural,l3"), "unknown objective 'l3'"),
        (("--trials", "1", "--objectives", "natural"), "give two or more objectives"),
        (("--trials", "1", "--search", "depth"), "unknown search 'depth'"),
        (("--trials", "1", "--maximise", "mean"), "unknown objective of this search: 'mean'"),
        (("--trials", "1", "--at-least", "natural"), "--at-least takes an objective and a percentage"),
        (("--trials", "1", "--set", "mixing.evry=1"), "unknown field of mixing"),
    ],
)
def test_mistakes_of_tune_are_one_line(cli: Cli, arguments: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    said = cli("tune", "digits-generalist-t", *arguments)
    assert said.code == 2
    assert complaint in said.err
    assert len(said.errors) == 1
    assert not list(tmp_path.iterdir())
