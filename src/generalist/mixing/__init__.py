"""The global learner: what it is made of (accumulate), when (plan), by module, and its statistics (batchnorm)."""

from generalist.mixing.accumulate import Mix
from generalist.mixing.batchnorm import has_batchnorm, recalibrate_
from generalist.mixing.by_module import ByName, ModuleGamma, OverDepth, Part, parts_of
from generalist.mixing.plan import REST, WHOLE, Gamma, MixPlan, Points, Share

__all__ = [
    "REST",
    "WHOLE",
    "ByName",
    "Gamma",
    "Mix",
    "MixPlan",
    "ModuleGamma",
    "OverDepth",
    "Part",
    "Points",
    "Share",
    "has_batchnorm",
    "parts_of",
    "recalibrate_",
]
