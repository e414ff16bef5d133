"""The README runs from top to bottom as it is printed, in one folder.

Bash and Python blocks are run, YAML blocks are read as recipes; blocks of no language are not for running. Training is
cut to two epochs of 200 images and a narrow network. Files that a reader is said to have (somebody else's model) are
made here.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import generalist
from generalist.recipes.catalogue import load_recipe
from printed import blocks, reader_environment, run_block_forked, shortened

README = Path(__file__).parents[1] / "README.md"
SHORT = ["training.epochs=2", "data.limit=200", "model.width=8"]
FOREIGN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader has: somebody's module with its weights."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "theirs.py").write_text(FOREIGN)
    split: Any = generalist.load_dataset("digits").train
    x = split.images.float().flatten(1) / 255
    centres = torch.stack([x[split.labels == k].mean(0) for k in range(10)])
    torch.save({"1.weight": 4 * centres, "1.bias": -2 * centres.square().sum(1)}, here / "theirs.pt")
    return here


def test_everything_printed_runs_in_order(folder: Path, tmp_path: Path) -> None:
    environment = reader_environment(tmp_path)
    found = blocks(README.read_text())
    assert {"bash", "python", "yaml"} <= {language for language, _ in found}
    for language, text in found:
        if language == "yaml":
            (folder / "printed.yaml").write_text(text)
            assert load_recipe(folder / "printed.yaml", method="at").name.endswith("-at")
            continue
        run_block_forked(language, shortened(language, text, SHORT), folder=folder, environment=environment)
    assert (folder / "trade-off.png").is_file()
    assert (folder / "record.json").is_file()
    assert len(list((folder / "runs").iterdir())) == 3
