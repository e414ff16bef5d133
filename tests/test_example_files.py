"""The files in examples/ run as they are, and the models that they train are robust."""

import re
import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
LOOPS = ("plain_loop.py", "lightning_loop.py")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", LOOPS)
def test_the_pieces_work_in_somebody_elses_loop(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "lightning_loop.py":
        pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")
    runpy.run_path(str(EXAMPLES / name))
    found = dict(re.findall(r"^(natural|linf:1/10): (\d\.\d+)$", capsys.readouterr().out, re.MULTILINE))
    assert float(found["natural"]) > 0.9
    assert float(found["linf:1/10"]) > 0.6


def test_a_network_of_ones_own_in_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_network.py"))
    printed = capsys.readouterr().out
    assert "100 images, accuracy in %" in printed
    assert "front of 6 mixtures of linf, natural and l2" in printed
    code = [line for line in (EXAMPLES / "own_network.py").read_text().splitlines() if line and '"""' not in line]
    assert len(code) <= 11


@pytest.mark.parametrize("name", LOOPS)
def test_an_example_fits_on_a_screen(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 60
