"""What a document prints, as a reader would type it."""

import glob
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from run_cases import exit_code, forked_command


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of every block that has a language, in their order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def shortened(language: str, text: str, changes: Sequence[str]) -> str:
    """With these changes of the recipe added to every training."""
    if language == "bash":
        added = " ".join(f"--set {change}" for change in changes)
        return re.sub(r"^(generalist train [^#\n]*)", rf"\1 {added} ", text, flags=re.MULTILINE)
    return re.sub(r"(generalist\.train\([^\n]*)\)", rf"\1, overrides={list(changes)})", text)


def reader_environment(folder: Path, **more: str) -> dict[str, str]:
    """What a reader has: the command on the path, put into the folder, and a cache of their own there.

    No reader measures coverage, and tests that do run the same lines for less.
    """
    command = folder / "bin" / "generalist"
    command.parent.mkdir()
    # The installed command does not have the current folder on its path, so this one has not either.
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m generalist "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    given = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    return {**given, "PATH": path, "GENERALIST_CACHE": str(folder / "cache"), **more}


def run_block(language: str, text: str, *, folder: Path, environment: Mapping[str, str]) -> None:
    """A Python or bash block in a process of its own; it has to end well."""
    command = {"bash": ["bash", "-euc"], "python": [sys.executable, "-c"]}[language]
    done = subprocess.run(
        [*command, text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stderr}"


def run_block_forked(language: str, text: str, *, folder: Path, environment: Mapping[str, str]) -> None:
    """The same, but every `generalist …` of bash is a copy of this process, which does not import torch anew."""
    lines = text.replace("\\\n", " ").splitlines()
    if language != "bash" or not all(line.startswith("generalist ") for line in lines):
        run_block(language, text, folder=folder, environment=environment)
        return
    log = folder.with_suffix(".log")
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        given = [found for word in words for found in sorted(glob.glob(word, root_dir=folder)) or [word]]
        child = forked_command(given, log, folder=folder, **environment)
        assert exit_code(child) == 0, f"{line}\n{log.read_text()}"
