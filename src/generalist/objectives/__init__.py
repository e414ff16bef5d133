"""How a batch becomes a loss. One file per method; importing it here is what registers it.

natural        CE(x)                                       adversarial   β·CE(x') + (1−β)·CE(x): AT and half-half
trades, hat, lbgat   the divergence from the clean answer  mart          weighs images that are wrong unattacked
fat            attacks that stop early                     fast          one long step, watched
iat            mixup of clean and adversarial images       rst           half clean, half robust; pseudo-labels
score          squared distances between probabilities     agr           gradients reconciled late in training
part           a bound for each pixel                      corrupted     noise, blur, contrast, brightness
average, max, msd    several threats at once               e-at          one extreme norm per batch
ramp           logit pairing, and a clean copy             rmc           a curve between two networks
awp            around any of them: `perturbed_weights`

An objective attacks when it is called and returns the loss as a function of the weights. Every objective is an
`ObjectiveModule`: functions are wrapped in one, and classes use its hooks for what is more than a loss.
"""

from generalist.objectives.adversarial import adversarial
from generalist.objectives.agr import agr
from generalist.objectives.awp import perturbed_weights
from generalist.objectives.corrupted import corrupted
from generalist.objectives.e_at import ExtremeNorms
from generalist.objectives.fast import Fast
from generalist.objectives.fat import fat
from generalist.objectives.iat import iat
from generalist.objectives.mart import mart
from generalist.objectives.module import FunctionObjective, ObjectiveModule, as_module
from generalist.objectives.multi_norm import average, msd, worst
from generalist.objectives.natural import natural
from generalist.objectives.part import part
from generalist.objectives.ramp import Ramp
from generalist.objectives.registry import (
    OBJECTIVES,
    carries_state,
    make_objective,
    networks_needed,
    starts_itself,
)
from generalist.objectives.rmc import Curve
from generalist.objectives.rst import rst
from generalist.objectives.score import score
from generalist.objectives.trades import BoundaryGuided, HelperAdversarial, trades

__all__ = [
    "OBJECTIVES",
    "BoundaryGuided",
    "Curve",
    "ExtremeNorms",
    "Fast",
    "FunctionObjective",
    "HelperAdversarial",
    "ObjectiveModule",
    "Ramp",
    "adversarial",
    "agr",
    "as_module",
    "average",
    "carries_state",
    "corrupted",
    "fat",
    "iat",
    "make_objective",
    "mart",
    "msd",
    "natural",
    "networks_needed",
    "part",
    "perturbed_weights",
    "rst",
    "score",
    "starts_itself",
    "trades",
    "worst",
]
