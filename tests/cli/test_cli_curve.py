"""`eval --suite curve` and `compare --suite curve`: tables, files, and mistakes of one line."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_cases import Cli
from PIL import Image

from curve_cases import curve_result, small_budgets
from generalist.core.files import sealed
from generalist.runs import curve as module
from generalist.runs.folder import Run

FEW = ("--suite", "curve", "--n", "4")


@pytest.fixture(autouse=True)
def cheap() -> Iterator[None]:
    with small_budgets():
        yield


def refused(cli: Cli, *arguments: str | Path, says: str) -> None:
    outcome = cli(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.errors
    assert says in line


def test_a_run_has_its_curve_and_several_stand_side_by_side(cli: Cli, copied: Path, tmp_path: Path) -> None:
    shown = cli("eval", copied, *FEW, "--figure", "all.svg", "--json", "record.json")
    assert shown.code == 0, shown.err
    assert "small-t/global" in shown.out
    assert "linf:3/20" in shown.out
    assert "AUC" in shown.out
    (record,) = json.loads(Path("record.json").read_text()).values()
    assert record == Run(copied).analysis("curve")
    assert "<svg" in Path("all.svg").read_text()
    for suffix, line in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        figure = copied / "figures" / f"global-curve{suffix}"
        assert figure.read_bytes().startswith(line)
        assert figure.name in shown.out
    again = cli("eval", copied, *FEW, "--json")
    assert again.json["small-t/global"]["threats"] == record["threats"]
    other = shutil.copytree(copied, tmp_path / "other")
    both = cli("compare", copied, other, "--suite", "curve", "--scatter", "both.png", "--json", "both.json")
    assert both.code == 0, both.err
    assert list(json.loads(Path("both.json").read_text())) == ["small-t", "other"]
    assert both.out.count("l2:1") == 2
    assert Image.open("both.png").format == "PNG"


def test_a_models_red_flags_are_printed_and_a_model_that_is_no_run_has_no_files(
    cli: Cli, trained: Run, tmp_path: Path
) -> None:
    model = trained.folder / "models" / "global.safetensors"
    shown = cli("eval", model, "--data", "digits", *FEW, "--threat", "linf:9")
    assert shown.code == 0, shown.err
    assert "red flag, " in shown.out
    assert "figure:" not in shown.out
    assert not list(tmp_path.iterdir())


def test_a_result_that_cannot_be_kept_is_shown_all_the_same(cli: Cli, copied: Path) -> None:
    (copied / "evaluations").mkdir(exist_ok=True)
    (copied / "evaluations" / "global-curve.json").mkdir()
    outcome = cli("eval", copied, *FEW, "--threat", "linf:1/10")
    assert outcome.code == 1
    assert "AUC" in outcome.out
    (line,) = outcome.errors
    assert "global-curve.json" in line


def test_an_interrupt_says_what_is_kept(cli: Cli, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "evaluate_curve", interrupted)
    outcome = cli("eval", copied, *FEW)
    assert outcome.code == 130
    assert "results so far are kept" in outcome.err


def test_mistakes_are_one_line(cli: Cli, copied: Path, tmp_path: Path) -> None:
    refused(cli, "eval", copied, "--figure", "x.png", says="--figure goes with --suite curve")
    refused(cli, "eval", copied, *FEW, "--figure", "x.pdf", says="--figure writes a .png or .svg file")
    refused(cli, "eval", copied, *FEW, "--save-adv", "x.npz", says="--save-adv goes with a suite of attacks")
    refused(cli, "compare", copied, "--suite", "curve", says="has no record of suite curve")
    Run(copied).write_analysis(sealed(curve_result({"linf:1/10": [0.1, 0.2]}).record()))
    for option in (["--paper", "I"], ["--csv", "x"], ["--classes"], ["--bars", "x.png"]):
        refused(cli, "compare", copied, "--suite", "curve", *option, says="--suite curve has a table, --json and")
    refused(cli, "compare", copied, "--suite", "curve", "--scatter", "x.pdf", says="--scatter writes a .png or .svg")
    record = copied / "evaluations" / "global-curve.json"
    record.write_text(record.read_text().replace("0.1", "0.15"))
    refused(cli, "compare", copied, "--suite", "curve", says="was changed since it was written")
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".png", ".pdf", ".npz")]
