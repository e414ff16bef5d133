"""A small fixed share of `make fuzz`; in a process of its own, for it limits memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")


ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("COV")}  # tracing is a third of it


def _fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FUZZ), "--seed", "0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(
    "share", [("--mutations", "250", "--corruptions", "0"), ("--mutations", "0", "--corruptions", "40")]
)
def test_a_share_of_all_cases_ends_as_it_should(share: tuple[str, ...]) -> None:
    done = _fuzz(*share)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


def test_a_failure_is_named_with_what_shows_it_again(tmp_path: Path) -> None:
    """The fuzzer itself: a bug is found, and ends it with 1."""
    script = (
        f"import sys; sys.path.insert(0, {str(FUZZ.parent)!r}); import fuzz, fuzz_recipes\n"
        "def broken(path): raise KeyError('a bug')\n"
        "fuzz_recipes.load_recipe = broken\n"
        "fuzz_recipes._bases = lambda: fuzz_recipes.OWN\n"
        "sys.exit(fuzz.main(['--seed', '3', '--only', 'recipe:0']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED --seed 3 --only recipe:0" in done.stdout
    assert "KeyError: 'a bug'" in done.stdout
