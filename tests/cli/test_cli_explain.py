"""`generalist explain` and `compare --classes`: text, JSON, files; mistakes are one line."""

import csv
import shutil
from pathlib import Path

from cli_cases import Cli

from compare_cases import record, write_run

FEW = ("--images", "30", "--examples", "4")
AT, T = "cifar10-resnet18-at", "cifar10-resnet18-generalist-t"


def refused(cli: Cli, *arguments: str | Path, says: str) -> None:
    outcome = cli(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.errors
    assert says in line


def test_a_run_is_explained_and_its_figures_are_in_its_folder(cli: Cli, copied: Path) -> None:
    shown = cli("explain", copied, *FEW)
    assert shown.code == 0, shown.err
    assert "weakest under linf:3/20" in shown.out
    assert "confused under l2:1: " in shown.out
    drawn = {path.name for path in (copied / "figures").iterdir()}
    assert {f"{what}.{kind}" for what in ("classes", "confusion", "gradcam") for kind in ("png", "svg")} <= drawn
    found = cli("explain", copied, *FEW, "--json")
    assert found.err == ""
    (run,) = found.json["runs"].values()
    assert sum(map(sum, run["confusion"]["natural"])) == run["images"] == 30
    assert found.json["gallery"] is None


def test_several_runs_have_a_gallery(cli: Cli, copied: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(copied, other)
    same = cli("explain", copied, other, *FEW, "--json", "--out", "out").json["gallery"]
    assert same["only_right"]["small-t"] == {view: [] for view in ("natural", "linf:3/20", "l2:1")}
    assert (tmp_path / "out" / "1-gradcam.png").stat().st_size > 1000
    assert not (tmp_path / "out" / "gallery.png").exists()  # equal models differ by nothing


def test_classes_side_by_side(cli: Cli, tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "at", AT, record(84.0, 44.0, 57.0)),
        write_run(tmp_path / "t", T, record(88.0, 43.0, 63.0)),
    ]
    files = [part for kind in ("csv", "latex", "markdown") for part in (f"--{kind}", f"c.{kind}")]
    shown = cli("compare", *runs, "--classes", *files, "--bars", "c.svg")
    assert shown.code == 0, shown.err
    assert "AA true union" in shown.out
    assert "against" in shown.out
    with open("c.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["class"], row["natural"]) for row in rows] == [
        ("0", "84.0"), ("all", "84.0"), ("0", "88.0"), ("all", "88.0"),
    ]  # fmt: skip
    assert r"\textbf{88.00}" in Path("c.latex").read_text()
    assert "**88.00**" in Path("c.markdown").read_text()
    assert "<svg" in Path("c.svg").read_text()
    assert cli("compare", *runs, "--classes", "--json").json["runs"][AT]["overall"]["natural"] == 84.0


def test_mistakes_are_one_line(cli: Cli, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(cli, "explain", tmp_path / "empty", says="is not a run folder")
    refused(cli, "explain", copied, "--model", "nobody", says="has no model 'nobody'")
    refused(cli, "explain", copied, "--images", "0", says="--images")
    refused(cli, "explain", copied, copied, says="is given twice")
    a = write_run(tmp_path / "a", AT, record(84.0, 44.0, 57.0))
    b = write_run(tmp_path / "b", T, record(88.0, 43.0, 63.0, images=200))
    other = record(88.0, 43.0, 63.0)
    other["examples"] = [f"x{name}" for name in other["examples"]]
    c = write_run(tmp_path / "c", T, other)
    refused(cli, "compare", a, b, "--classes", says="different numbers of images")
    refused(cli, "compare", a, c, "--classes", says="different images")
    refused(cli, "compare", a, "--classes", "--paper", "I", says="no figures by class")
    refused(cli, "compare", a, "--bars", "x.pdf", says="--bars writes a .png or .svg file")
