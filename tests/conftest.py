"""One thread per test process: several workers with several threads each spin against one another.

Convolutions use AVX-512 at the most, so that `precision: auto` is float32 everywhere.
"""

import os
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest
import torch
from matplotlib.figure import Figure

from generalist.report import figures

torch.set_num_threads(1)
hypothesis.settings.register_profile("generalist", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("generalist")


class Unrendered(Figure):
    """Composed as ever; its files are left empty."""

    def savefig(self, file: object, **options: object) -> None:
        pass


@pytest.fixture(scope="session", autouse=True)
def unrendered_figures() -> Iterator[None]:
    """A short run spends half of its time on pixels; tests that look at them use `run_cases.rendered_figures`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "Figure", Unrendered)
        yield
