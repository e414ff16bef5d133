"""CONTRIBUTING's recipes are followed as they are printed, in a folder of their own, with the real command line.

A block whose first line names a file is written to it, or added to it where it says "more"; bash blocks are run, and so
are Python blocks without a file. Training is cut to one epoch of a few images.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import generalist
from printed import blocks, reader_environment, run_block, run_block_forked, shortened

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
PACKAGE = Path(generalist.__file__).parent
SHORT = ["training.epochs=1", "data.limit=80", "model.width=4", "validation.images=20", "validation.steps=2"]
OWN, HERE = "In a package of your own", "In this package"
TASKS = ("Add a method", "Add an attack", "Add a dataset")


def printed(task: str, way: str | None = None) -> list[tuple[str, str]]:
    """The blocks of a section, or of one of its two ways."""
    (section,) = re.findall(rf"^## {task}\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE)
    if way is not None:
        (section,) = re.findall(rf"^### {way}\n(.*?)(?=^### |\Z)", section, flags=re.DOTALL | re.MULTILINE)
    return blocks(section)


def follow(
    found: list[tuple[str, str]],
    folder: Path,
    source: Path,
    environment: dict[str, str],
    *,
    run: Callable[..., None] = run_block,
) -> None:
    """Do what the blocks say: files below src/ are those of `source`, others those of the folder."""
    for language, text in found:
        first, _, rest = text.partition("\n")
        named = re.fullmatch(r"# ([\w./-]+\.\w+)( \(.* more .*\))?", first)
        if named:
            path = source / named[1] if named[1].startswith("src/") else folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            assert path.exists() == bool(named[2]) or language == "yaml", path
            path.write_text((path.read_text() if named[2] else "") + rest)
            continue
        text = text.replace("overrides=changes", f"overrides=[*changes, *{SHORT}]")
        text = shortened(language, text, SHORT) if language == "bash" else text
        run(language, text, folder=folder, environment=environment)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    return here


def test_a_package_of_ones_own_needs_no_change_here(folder: Path, tmp_path: Path) -> None:
    before, environment = contents(PACKAGE), reader_environment(tmp_path)
    for task in TASKS:
        follow(printed(task, OWN), folder, tmp_path / "nowhere", environment, run=run_block_forked)
    follow(printed("From Python"), folder, tmp_path / "nowhere", environment)
    assert contents(PACKAGE) == before
    runs = {path.name for path in (folder / "runs").iterdir()}
    assert runs == {"smoothed", "halves-at", "python"}
    recipe = yaml.safe_load((folder / "runs" / "smoothed" / "recipe.yaml").read_text())
    objective = recipe["learners"]["linf"]["objective"]
    assert (objective["name"], objective["smoothing"], objective["threat"]) == (
        "mypkg.losses:smoothed", 0.2, "linf:3/20",
    )  # fmt: skip
    record = json.loads((folder / "runs" / "smoothed" / "evaluations" / "global-leaps.json").read_text())
    assert record["stages"]["leap"]["attack"] == "mypkg.attacks:leap"
    assert (folder / "runs" / "smoothed" / "evaluations" / "global-long-leaps.json").is_file()


def test_the_same_in_a_copy_of_this_package(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    shutil.copytree(PACKAGE, copy / "src" / "generalist", ignore=shutil.ignore_patterns("__pycache__"))
    before = contents(copy)
    environment = reader_environment(tmp_path, PYTHONPATH=str(copy / "src"))
    for task in TASKS:
        follow(printed(task, HERE), folder, copy, environment)
    after = contents(copy)
    assert {path for path in after if after[path] != before.get(path)} == {
        f"src/generalist/{path}"
        for path in (
            "objectives/smoothed.py", "objectives/__init__.py", "recipes/methods/smoothed.yaml", "attacks/leap.py",
            "attacks/__init__.py", "data/halves.py", "data/datasets.py", "recipes/settings/halves.yaml",
        )
    }  # fmt: skip
    assert {path.name for path in (folder / "runs").iterdir()} == {"digits-smoothed", "halves-at"}
    assert (folder / "runs" / "digits-smoothed" / "evaluations" / "global-leaps.json").is_file()
