"""Around the commands: help by group, completion, the demo, and what a wheel holds."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_cases import Cli

from generalist.cli import completing
from generalist.cli.demo import demo_commands
from generalist.cli.main import EXIT_CODES, app
from generalist.recipes.shipped import part_names, recipe_names
from generalist.runs.folder import Run

ROOT = Path(__file__).parents[2]
COMMANDS = [*(one.name for one in app.registered_commands), *(one.name for one in app.registered_groups)]


def test_help_groups_the_commands_and_shows_an_example_of_each(cli: Cli) -> None:
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", cli("--help").out).split())
    for command in COMMANDS:
        assert f": generalist {command} " in said
    for group in ("Train", "Attack and compare", "Understand and choose", "This machine"):
        assert f" {group} " in said
    assert " ".join(EXIT_CODES.split()) in said


@pytest.mark.parametrize("command", [name for name in COMMANDS if name])
def test_every_command_ends_its_help_with_an_example(cli: Cli, command: str) -> None:
    assert f"Example: generalist {command}" in cli(command, "--help").out


@pytest.mark.parametrize(("shell", "told"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --comm")])
def test_the_script_of_a_shell_is_printed(shell: str, told: str) -> None:
    command = [sys.executable, "-m", "generalist", "completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told in done.stdout
    assert "_GENERALIST_COMPLETE" in done.stdout


def test_an_unknown_shell_is_one_line(cli: Cli) -> None:
    outcome = cli("completion", "tcsh")
    assert outcome.code == 2
    assert "bash" in outcome.err
    assert len(outcome.errors) == 1


def asked(words: str, folder: Path) -> list[str]:
    """What bash is told when the last of these words is to be completed."""
    environment = {**os.environ, "_GENERALIST_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    command = [sys.executable, "-X", "importtime", "-m", "generalist"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert " torch" not in done.stderr  # which would take seconds
    return done.stdout.split("\n")[:-1] if done.stdout else []


def test_bash_completes_commands_and_recipes(tmp_path: Path) -> None:
    assert asked("generalist tra", tmp_path) == ["train"]
    assert asked("generalist train digits-generalist-late", tmp_path) == [
        "digits-generalist-late-d", "digits-generalist-late-half", "digits-generalist-late-t",
    ]  # fmt: skip


def test_recipes_suites_methods_and_run_folders_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(trained.folder)
    (tmp_path / "runs" / "other").mkdir()
    for name in ("own.yaml", "notes.txt", ".hidden.yaml"):
        (tmp_path / name).touch()
    assert completing.runs("") == ["runs/"]
    assert completing.runs("runs/") == ["runs/mine", "runs/other/"]
    assert completing.runs("nowhere/") == completing.runs("~nobody-of-this-name/") == []
    assert completing.recipes("digits-at") == [name for name in recipe_names() if name.startswith("digits-at")]
    assert completing.recipes("ow") == completing.suites("ow") == ["own.yaml"]
    assert completing.recipes("runs/") == ["runs/mine/", "runs/other/"]
    assert completing.suites("q") == ["quick"]
    assert completing.methods("generalist-late") == [
        n for n in part_names("methods") if n.startswith("generalist-late")
    ]
    assert completing.runs("/etc/host") == []


def test_the_demo_is_one_list_of_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [arguments[0] for arguments in demo_commands(Path("runs/demo"))]
    assert names == ["train"] * 5 + ["dial", "eval", "compare", "report"]
    printed = cli("demo", "--dry-run", "--out", "d").out.splitlines()
    assert printed[0] == "generalist train digits-nt --set select=last --out d/nt"
    assert len(printed) == len(names)
    assert "$(BIN)/generalist demo --out $(RUNS)" in (ROOT / "Makefile").read_text()
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command)
        return SimpleNamespace(returncode=3 if "dial" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert cli("demo", "--out", "d").code == 3  # that of the command that failed
    assert [command[3] for command in ran] == ["train"] * 5 + ["dial"]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    assert "report: d/report.html" in cli("demo", "--out", "d").out
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused = cli("demo", "--out", "full")
    assert (refused.code, len(refused.errors)) == (2, 1)


def test_every_command_of_the_demo_is_understood(cli: Cli) -> None:
    for arguments in demo_commands(Path("nowhere")):
        if arguments[0] == "train":
            assert cli(*arguments, "--dry-run").code == 0
        else:  # options are fine, the runs are not there
            outcome = cli(*arguments)
            assert outcome.code == 2
            assert "nowhere/" in outcome.err


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of the wheel that this tree gives."""
    out = tmp_path_factory.mktemp("wheel")
    build = (
        "import sys; from setuptools.build_meta import build_wheel; import os; os.chdir(sys.argv[1]);"
        "print(build_wheel(sys.argv[2]))"
    )
    source = out / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "src").symlink_to(ROOT / "src")
    done = subprocess.run([sys.executable, "-c", build, source, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = out.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_a_wheel_holds_all_that_the_package_needs(wheel: set[str]) -> None:
    package = ROOT / "src" / "generalist"
    ours = {
        str(path.relative_to(ROOT / "src"))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert ours - wheel == set()
    assert {name for name in wheel if not name.startswith("generalist/")} - {
        name for name in wheel if ".dist-info/" in name
    } == set()  # no tests, no benchmarks
