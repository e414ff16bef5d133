"""The global learner: what it is made of (accumulate), when (plan), and its statistics (batchnorm)."""

from generalist.mixing.accumulate import Mix
from generalist.mixing.batchnorm import has_batchnorm, recalibrate_
from generalist.mixing.plan import REST, Gamma, MixPlan, Points, Share

__all__ = ["REST", "Gamma", "Mix", "MixPlan", "Points", "Share", "has_batchnorm", "recalibrate_"]
