"""The README runs from top to bottom as it is printed, in one folder.

Bash and Python blocks are run, YAML blocks are read as recipes; blocks of no language are not for running. Training is
cut to two epochs of 200 images and a narrow network. The files that a reader is said to have (somebody else's model)
are made here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import generalist
from generalist.recipes.catalogue import load_recipe

README = Path(__file__).parents[1] / "README.md"
SHORT = ["training.epochs=2", "data.limit=200", "model.width=8"]
FOREIGN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


def blocks() -> list[tuple[str, str]]:
    """(language, text) of every block, in their order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)


def shortened(language: str, text: str) -> str:
    if language == "bash":
        changes = " ".join(f"--set {change}" for change in SHORT)
        return re.sub(r"^(generalist train [^#\n]*)", rf"\1 {changes} ", text, flags=re.MULTILINE)
    return re.sub(r"(generalist\.train\([^\n]*)\)", rf"\1, overrides={SHORT})", text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader has: the command, and somebody's module with its weights."""
    command = tmp_path / "bin" / "generalist"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m generalist "$@"\n')
    command.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    (here / "theirs.py").write_text(FOREIGN)
    split: Any = generalist.load_dataset("digits").train
    x = split.images.float().flatten(1) / 255
    centres = torch.stack([x[split.labels == k].mean(0) for k in range(10)])
    torch.save({"1.weight": 4 * centres, "1.bias": -2 * centres.square().sum(1)}, here / "theirs.pt")
    return here


def test_everything_printed_runs_in_order(folder: Path, tmp_path: Path) -> None:
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GENERALIST_CACHE": str(tmp_path / "cache")}
    found = blocks()
    assert {"bash", "python", "yaml"} <= {language for language, _ in found}
    for language, text in found:
        if language == "yaml":
            (folder / "printed.yaml").write_text(text)
            assert load_recipe(folder / "printed.yaml", method="at").name.endswith("-at")
            continue
        command = {"bash": ["bash", "-euc"], "python": [sys.executable, "-c"]}[language]
        text = shortened(language, text)
        done = subprocess.run(
            [*command, text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"
    assert (folder / "trade-off.png").is_file()
    assert (folder / "record.json").is_file()
    assert len(list((folder / "runs").iterdir())) == 3
