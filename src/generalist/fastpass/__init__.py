"""Faster passes with the same answers, for attacks. The rest of the code knows `prepared` and `switched_off` alone.

prepare    prepared: a model made ready for the passes of an attack
switch     switched_off and GENERALIST_FASTPASS=0: plain passes through the model itself
folding    BatchNorm folded into convolutions
winograd   convolutions of small maps with fewer multiplications
patches    passes over one changed window per image
locality   which part of a feature map a window reaches
tracing    a model as a graph
allocator  freed memory kept for the next pass
"""

from generalist.fastpass.patches import WindowPasses
from generalist.fastpass.prepare import Prepared, prepared
from generalist.fastpass.switch import switched_off

__all__ = ["Prepared", "WindowPasses", "prepared", "switched_off"]
