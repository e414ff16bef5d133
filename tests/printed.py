"""What a document prints, as a reader would type it."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path


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
