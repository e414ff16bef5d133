"""One thread per test process: several workers with several threads each spin against one another.

Convolutions use AVX-512 at the most, so that `precision: auto` is float32 everywhere.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("generalist", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("generalist")
