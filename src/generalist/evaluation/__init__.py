"""What a model is worth.

accuracy    natural and PGD, quick enough for training          attacked   a whole suite, with its record
suite       which attacks, which columns                        verdicts   on disk, never computed twice
red_flags   signs that a figure is not what it seems            probe      what a model takes and gives, before attacks
"""

from generalist.evaluation.accuracy import Evaluation, evaluate_split, percent
from generalist.evaluation.attacked import Attacked, evaluate_suite, save_attacked
from generalist.evaluation.red_flags import Flag, examine_model, no_weights
from generalist.evaluation.suite import SUITE_NAMES, Stage, Suite, load_suite
from generalist.evaluation.verdicts import Verdicts, model_hash

__all__ = [
    "SUITE_NAMES",
    "Attacked",
    "Evaluation",
    "Flag",
    "Stage",
    "Suite",
    "Verdicts",
    "evaluate_split",
    "evaluate_suite",
    "examine_model",
    "load_suite",
    "model_hash",
    "no_weights",
    "percent",
    "save_attacked",
]
