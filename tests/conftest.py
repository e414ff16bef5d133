"""One thread a test process: several workers with several threads each spin against one another."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("generalist", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("generalist")
