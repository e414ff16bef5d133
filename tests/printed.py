"""What a document prints, as a reader would type it."""

import glob
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import generalist
from run_cases import exit_code, forked, forked_command


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of every block that has a language, in their order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


FOREIGN = """
from collections import OrderedDict
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=64):
        super().__init__(OrderedDict(flat=nn.Flatten(), body=nn.Linear(64, 64), head=nn.Linear(64, 10)))
"""
"""It takes a width because that is how the tests shorten what pages train."""


def write_foreign_model(folder: Path) -> None:
    """What a reader is said to have: somebody's module with its weights, and images: theirs.py, theirs.pt, own.npz."""
    (folder / "theirs.py").write_text(FOREIGN)
    split: Any = generalist.load_dataset("digits").train
    x = split.images.float().flatten(1) / 255
    centres = torch.stack([x[split.labels == k].mean(0) for k in range(10)])
    body = {"body.weight": torch.eye(64), "body.bias": torch.zeros(64)}
    torch.save({**body, "head.weight": 4 * centres, "head.bias": -2 * centres.square().sum(1)}, folder / "theirs.pt")
    images, labels = split.images[:100].numpy(), split.labels[:100].numpy()
    np.savez(folder / "own.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)


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
    """The same, but Python and every `generalist …` of bash run in copies of this process: they import nothing anew."""
    log = folder.with_suffix(".log")
    if language == "python":
        child = forked(partial(_execute, text, log, folder, environment))
        assert exit_code(child) == 0, f"{text}\n{log.read_text()}"
        return
    lines = text.replace("\\\n", " ").splitlines()
    if language != "bash" or not all(line.startswith("generalist ") for line in lines):
        run_block(language, text, folder=folder, environment=environment)
        return
    for line in lines:
        run_command_forked(shlex.split(line, comments=True)[1:], folder=folder, environment=environment)


def run_command_forked(words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
    """`generalist …` in a copy of this process, with patterns expanded as a shell does; it has to end well."""
    log = folder.with_suffix(".log")
    given = [found for word in words for found in sorted(glob.glob(word, root_dir=folder)) or [word]]
    child = forked_command(given, log, folder=folder, **environment)
    assert exit_code(child) == 0, f"generalist {shlex.join(words)}\n{log.read_text()}"


def _execute(text: str, log: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Python as `python -c` in the folder runs it; what it says is added to the log."""
    sys.settrace(None)
    os.chdir(folder)
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    with log.open("a") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        exec(compile(text, "printed", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()


def write_photos(folder: Path) -> None:
    """photos/<class>/*.png, as a reader of the README has them."""
    for n, (name, colour) in enumerate(40 * [("red", (200, 60, 60)), ("blue", (60, 60, 200))]):
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), tuple(part + n % 40 for part in colour)).save(folder / "photos" / name / f"{n}.png")
