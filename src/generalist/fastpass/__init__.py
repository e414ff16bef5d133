"""Faster passes with the same answers, for attacks.

folding    BatchNorm folded into convolutions           tracing    a model as a graph
winograd   shorter convolutions of small maps           patches    passes over a changed window alone
locality   which part of a map a window can reach
"""

from generalist.fastpass.folding import fold_batchnorm, folded, forget_transforms, refresh_
from generalist.fastpass.patches import Patchable, Patches
from generalist.fastpass.winograd import float32_on_cpu

__all__ = ["Patchable", "Patches", "float32_on_cpu", "fold_batchnorm", "folded", "forget_transforms", "refresh_"]
