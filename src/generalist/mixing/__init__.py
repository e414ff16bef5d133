"""The global learner: what it is made of (accumulate), when (plan), by module, and its statistics (batchnorm).

Mixtures of finished models, of any weights, are made by `merge`.
"""

from generalist.mixing.accumulate import Mix
from generalist.mixing.batchnorm import has_batchnorm, recalibrate_, statistics
from generalist.mixing.by_module import ByName, ModuleGamma, OverDepth, Part, parts_of
from generalist.mixing.merge import MergeWeights, check_alike, completed, lattice, merge, module_groups
from generalist.mixing.plan import REST, WHOLE, Gamma, MixPlan, Points, Share

__all__ = [
    "REST",
    "WHOLE",
    "ByName",
    "Gamma",
    "MergeWeights",
    "Mix",
    "MixPlan",
    "ModuleGamma",
    "OverDepth",
    "Part",
    "Points",
    "Share",
    "check_alike",
    "completed",
    "has_batchnorm",
    "lattice",
    "merge",
    "module_groups",
    "parts_of",
    "recalibrate_",
    "statistics",
]
