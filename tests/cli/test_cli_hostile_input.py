"""Input that nobody means well by: one short line, exit code 2, nothing written, no hang."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_cases import Cli, Outcome

from generalist.core.errors import UserError
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.schema import parse_recipe
from generalist.runs.train import Run

NESTED = "[" * 3000 + "]" * 3000
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))

CHANGES = {
    "component-key": ("learners.linf.objective={1: 2}", "'1'", "not text"),
    "component-name": ("learners.linf.objective={name: [1]}", "objective", "[1]"),
    "gamma-huge": ("learners.linf.gamma=1e400", "learners.linf.gamma", "'1e400'"),
    "gamma-exponent": ("learners.linf.gamma=1e999999999", "learners.linf.gamma"),
    "eps-huge": ("learners.linf.objective.threat=linf:1e999999999", "8/255", "1e999999999"),
    "eps-tiny": ("learners.linf.objective.threat=linf:1e-99", "too small"),
    "step-size": ("learners.linf.objective.step_size=1e999999999", "1e999999999"),
    "start": ("mixing.start=1e999999999", "mixing.start"),
    "seed-tag": ("seed=!!int x", "seed", "tag"),
    "seed": (f"seed={2**63}", "seed", "less than"),
    "seed-digits": (f"seed={'9' * 5000}", "seed", "5000 characters"),
    "nested": (f"seed={NESTED}", "seed", "levels deep"),
    "epochs": (f"training.epochs={10**12}", "training.epochs", "1000000"),
    "batch": ("training.batch_size=99999999999999999999", "training.batch_size"),
    "steps": ("learners.linf.objective.steps=100000", "steps", "1000"),
    "width": ("model.width=10000000", "model.width", "1000000"),
    "width-allowed": ("model.width=1000000", "parameters"),
    "wrn": ("model.name=wrn-100000-100000", "wrn-100000-100000"),
    "wrn-parameters": ("model.name=wrn-1000-100", "parameters"),
    "size": ("data.size=100000", "data.size", "4096"),
    "size-memory": ("data.size=4096", "GiB"),
    "workers": ("data.workers=100000", "data.workers"),
    "name-path": ("name=../../x", "name", "'../../x'"),
    "name-dot": ("name=.hidden", "name", "'.hidden'"),
    "name-long": (f"name={'x' * 300}", "name", "100"),
    "name-empty": ("name=''", "name"),
    "name-number": ("name=3", "name", "got 3"),
    "root-nul": ('data={name: folder, root: "a\\0b"}', "data.root", "cannot be a path"),
    "root-user": ("data={name: folder, root: ~nouser/x}", "~nouser/x", "home"),
    "root-long": (f"data={{name: folder, root: {'x' * 500}}}", "too long"),
    "extra-user": ("data.extra={file: ~nouser/x.npz}", "~nouser/x.npz", "home"),
    "init-user": ("init.from=~nouser/x", "~nouser/x", "home"),
    "needs-list": ("needs=[1]", "needs", "mapping"),
    "learner-name": (f"learners.{'x' * 300}.gamma=1", "learner"),
    "path": (f"{'a.' * 500}b=1", "field.path=value"),
    "long-value": (f"training.epochs={'x' * 50_000}", "training.epochs"),
    "breakpoints": (f"learners.linf.gamma={{at: [0{', 1' * 500}], values: [0{', 1' * 500}]}}", "at most 100"),
}

FILES = {
    "task-list": "learners: {linf: {task: []}}",
    "task-number": "learners: {linf: {task: 3}}",
    "objective-key": "learners: {linf: {objective: {1: 2}}}",
    "learner-key": "learners: {1: {objective: natural}}",
    "extends-nul": 'extends: "a\\0b"',
    "extends-user": "extends: ~nouser/x.yaml",
    "extends-long": f"extends: {'x' * 5000}",
    "extends-folder": "extends: .",
    "duplicate": "training: {epochs: 1}\ntraining: {epochs: 2}",
    "nested": f"data: {NESTED}",
    "bomb": BOMB,
    "threat-times": "learners: {linf: {objective: {threat: {times: 1e999999999}}}}",
    "times-list": "learners: {linf: {objective: {threat: {times: [1]}}}}",
    "many-learners": "learners: {" + ", ".join(f"a{i}: {{task: linf}}" for i in range(100)) + "}",
}


def assert_refused(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 2, outcome.err
    (line,) = outcome.errors
    assert line.startswith("error: ")
    assert len(line) < 1000
    for fragment in fragments:
        assert fragment in line
    assert outcome.out == ""


@pytest.mark.parametrize("case", CHANGES)
def test_a_value_out_of_all_bounds(cli: Cli, tmp_path: Path, case: str) -> None:
    change, *fragments = CHANGES[case]
    assert_refused(cli("train", "digits-generalist-d-natural", "--dry-run", "--set", change), *fragments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", FILES)
def test_a_recipe_file_made_to_do_harm(cli: Cli, tmp_path: Path, case: str) -> None:
    base = "" if "extends" in FILES[case] else "extends: digits-generalist-d-natural\n"
    (tmp_path / "a.yaml").write_text(base + FILES[case])
    assert_refused(cli("train", "a.yaml", "--dry-run"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00a", b"name: caf\xe9", b"", b"\x00" * 100])
@pytest.mark.parametrize("command", [("train",), ("eval", "--model", "resnet18", "--data", "digits", "--suite")])
def test_a_yaml_file_that_is_no_text(cli: Cli, tmp_path: Path, content: bytes, command: tuple[str, ...]) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    assert_refused(cli(*command, "a.yaml"), "a.yaml")


ARGUMENTS = {
    "threat": ("eval", "x", "--threat", "linf:1e999999999"),
    "batch-size": ("eval", "x", "--batch-size", "99999999999999999999"),
    "n": ("eval", "x", "--n", "99999999999999999999"),
    "seed": ("eval", "x", "--seed", str(2**64)),
    "ranks": ("train", "digits-at", "--dry-run", "--ranks", str(10**12)),
    "user": ("train", "~nouser/x"),
    "user-out": ("train", "digits-at", "--out", "~nouser/x"),
    "user-eval": ("eval", "~nouser/x"),
    "user-suite": ("eval", "x", "--suite", "~nouser/x"),
    "user-data": ("eval", "--model", "resnet18", "--data", "~nouser/x", "--threat", "l2:1"),
    "user-compare": ("compare", "~nouser/x"),
    "long": ("train", "x" * 5000),
    "long-eval": ("eval", "x" * 5000),
    "long-suite": ("eval", "x", "--suite", "x" * 5000),
    "long-compare": ("compare", "x" * 5000),
    "long-out": ("train", "digits-at", "--out", "x" * 5000),
    "folder": ("train", "."),
    "folder-suite": ("eval", "x", "--suite", "."),
    "folder-json": ("compare", "x", "--csv", "."),
    "root-csv": ("compare", "x", "--csv", "/"),
    "under-a-file": ("train", "digits-at", "--out", f"{__file__}/x/y"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_out_of_all_bounds(cli: Cli, tmp_path: Path, case: str) -> None:
    assert_refused(cli(*ARGUMENTS[case]))
    assert list(tmp_path.iterdir()) == []


SUITES = {
    "name-path": "name: ../../x\nattacks: [pgd]",
    "entry": "attacks: [3]",
    "entry-list": "attacks: [[pgd]]",
    "attack-list": "attacks: [{attack: [pgd]}]",
    "label": "attacks: [{attack: pgd, label: [1]}]",
    "label-long": f"attacks: [{{attack: pgd, label: {'x' * 5000}}}]",
    "cascade": "cascade: 3\nattacks: [pgd]",
    "steps": "attacks: [{attack: pgd, steps: 100000000}]",
    "label-argument": "attacks: [{attack: pgd, attacks: 3}]",
    "many": f"attacks: [{', '.join(f'{{attack: pgd, label: a{i}}}' for i in range(200))}]",
    "nested": f"attacks: {NESTED}",
    "bomb": BOMB,
    "duplicate": "attacks: [pgd]\nattacks: [cw]",
    "shipped-name": "name: autoattack\nattacks: [pgd]",
}


@pytest.mark.parametrize("case", SUITES)
def test_a_suite_file_made_to_do_harm(cli: Cli, tmp_path: Path, case: str) -> None:
    (tmp_path / "s.yaml").write_text(SUITES[case])
    assert_refused(cli("eval", "x", "--suite", "s.yaml"))


def test_a_device_is_written_to_and_not_replaced(cli: Cli, trained: Run, fast: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        outcome = cli("eval", trained.folder, "--suite", fast, "--global", "--n", "4", "--json", "pipe", "--quiet")
        assert outcome.code == 0, outcome.err
        assert b'"accuracy"' in os.read(reader, 100_000)
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


TOO_LARGE = {
    "memory": MemoryError(),
    "recursion": RecursionError("maximum recursion depth exceeded"),
    "overflow": OverflowError("int too large to convert to float"),
    "torch": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory\n  frame 0"
    ),
    "torch-shape": RuntimeError("Storage size calculation overflowed with sizes=[1]"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_does_not_fit_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    def large(*args: Any, **options: Any) -> None:
        raise TOO_LARGE[case]

    monkeypatch.setattr("generalist.recipes.catalogue.load_recipe", large)
    outcome = cli("recipes", "show", "digits-at")
    assert outcome.code == 1
    (line,) = outcome.errors
    assert line.startswith("error: too large for this machine: ")


def test_a_bug_of_our_own_is_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*args: Any, **options: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("generalist.recipes.catalogue.load_recipe", bug)
    with pytest.raises(RuntimeError, match="shapes"):
        cli("recipes", "show", "digits-at")


def test_the_home_folder_may_be_written_as_a_tilde(
    cli: Cli, trained: Run, fast: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    outcome = cli("eval", trained.folder, "--suite", fast, "--global", "--n", "4", "--json", "~/record.json", "--quiet")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "home" / "record.json").is_file()


@pytest.mark.parametrize(
    "change", [{"learners": {1: {}}}, {"learners": {"a": {"objective": {1: 2}}}}, {2: 3}, {None: {}}]
)
def test_keys_that_are_no_text_from_python(change: dict[Any, Any]) -> None:
    with pytest.raises(UserError):
        parse_recipe({**load_recipe("digits-nt").plain(), **change})


@pytest.mark.no_cover  # traced, ten thousand epochs take thrice as long
def test_the_longest_plan_that_is_allowed_is_shown_at_once_and_fits_a_screen(cli: Cli) -> None:
    outcome = cli("train", "digits-generalist-t", "--set", "training.epochs=10000", "--dry-run", "--ranks", "64")
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) < 60
    assert "10000 epochs" in outcome.out


def test_files_are_utf_8_and_everything_is_printed_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: digits-at\ndescription: 'ℓ∞, größer'\n", encoding="utf-8")
    given = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    plain = {**given, "LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "generalist", "train", "mine.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr


STOPPED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("typer", ["recipes"]), ("yaml", ["recipes"]), ("torch", ["recipes", "show", "digits-at"]), ("torch", ["doctor"])],
)
@pytest.mark.parametrize("command", [["-m", "generalist"], ["-c", "from generalist.__main__ import main; main()"]])
def test_an_interrupt_while_starting_leaves_quietly(
    tmp_path: Path, module: str, arguments: list[str], command: list[str]
) -> None:
    """A stand-in for a package that takes long to import gets the interrupt that a user would send."""
    (tmp_path / f"{module}.py").write_text(STOPPED)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command, *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
