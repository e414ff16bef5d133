"""What is asked most often answers at once: no package that takes long to import is imported for it."""

import json
import subprocess
import sys

import pytest

from generalist.training.precision import pick_device

SLOW = ("torch", "numpy", "scipy", "sklearn", "matplotlib")
PROBE = """
import json, sys
from generalist.__main__ import main
sys.argv = ["generalist", *sys.argv[1:]]
try:
    main()
except SystemExit as stopped:
    print(json.dumps([stopped.code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["recipes"],
        ["recipes", "--json"],
        ["train", "--help"],
        ["eval", "--help"],
        ["init", "--help"],
        ["completion", "fish"],
    ],
)
def test_slow_packages_are_imported_only_where_they_are_needed(arguments: list[str]) -> None:
    if arguments == ["--version"] and pick_device().type != "cpu":
        pytest.skip("torch is asked which GPU there is")
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert (code or 0) == 0
    assert done.stdout
    assert [name for name in SLOW if name in modules] == []
