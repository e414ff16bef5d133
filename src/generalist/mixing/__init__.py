"""The global learner: what it is made of (accumulate), when (plan), and its statistics (batchnorm).

merge: any mixture of finished models, per learner and per module.
"""

from generalist.mixing.accumulate import Mix
from generalist.mixing.batchnorm import has_batchnorm, recalibrate_
from generalist.mixing.merge import MergeWeights, completed, lattice, merge, module_groups
from generalist.mixing.plan import REST, Gamma, MixPlan, Points, Share

__all__ = [
    "REST",
    "Gamma",
    "MergeWeights",
    "Mix",
    "MixPlan",
    "Points",
    "Share",
    "completed",
    "has_batchnorm",
    "lattice",
    "merge",
    "module_groups",
    "recalibrate_",
]
