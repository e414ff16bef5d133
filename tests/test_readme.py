"""The README runs from top to bottom as it is printed, in one folder.

Bash and Python blocks are run, YAML blocks are read as recipes; blocks of no language are not for running. Training is
cut to two epochs of 200 images and a narrow network. Files that a reader is said to have (somebody else's model) are
made here.
"""

from pathlib import Path

import pytest

from generalist.recipes.catalogue import load_recipe
from generalist.runs import doctor
from printed import blocks, reader_environment, run_block_forked, shortened, write_foreign_model, write_photos

README = Path(__file__).parents[1] / "README.md"
SHORT = ["training.epochs=2", "data.limit=200", "model.width=8"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader has: somebody's module with its weights, and a folder of photos."""
    here = tmp_path / "here"
    here.mkdir()
    write_foreign_model(here)
    write_photos(here)
    return here


def test_everything_printed_runs_in_order(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.5)
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
    assert len(list((folder / "runs").iterdir())) == 6
