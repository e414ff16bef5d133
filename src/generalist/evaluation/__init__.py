"""What a model is worth.

accuracy    natural and PGD, quick enough for training          attacked   a whole suite, with its record
suite       which attacks, which columns                        verdicts   on disk, checked before they are believed
red_flags   signs that a figure is not what it seems            standing   how far it is, stage by stage
records     on disk, read back only if their figures check      identity   which model a figure belongs to
probe       what a model takes and gives, before attacks        tradeoff   fronts of mixtures, and choosing a point
glance      losses, and what a model says of a few images       curve      minimal distances, accuracy against ε
fronts      interpolated, dominated, hypervolume                front_records  verdicts of one seed in a small file
ood         corruptions and perturbation sequences
"""

from generalist.core.names import MEAN, SUITE_NAMES, UNION
from generalist.evaluation.accuracy import Evaluation, evaluate_split, percent
from generalist.evaluation.attacked import SuiteResult, evaluate_suite, save_attacked
from generalist.evaluation.curve import Curve, CurveResult, evaluate_curve, read_curve, record_curves
from generalist.evaluation.identity import model_hash, verdict_key
from generalist.evaluation.ood import OodResult, evaluate_ood, read_ood
from generalist.evaluation.records import read_record
from generalist.evaluation.red_flags import Flag, examine_model, no_weights
from generalist.evaluation.standing import Ended, Standing
from generalist.evaluation.suite import SUITES, Stage, Suite, load_suite
from generalist.evaluation.tradeoff import Barrier, MixturePoint, Wish
from generalist.evaluation.verdicts import Verdicts

__all__ = [
    "MEAN",
    "SUITES",
    "SUITE_NAMES",
    "UNION",
    "Barrier",
    "Curve",
    "CurveResult",
    "Ended",
    "Evaluation",
    "Flag",
    "MixturePoint",
    "OodResult",
    "Stage",
    "Standing",
    "Suite",
    "SuiteResult",
    "Verdicts",
    "Wish",
    "evaluate_curve",
    "evaluate_ood",
    "evaluate_split",
    "evaluate_suite",
    "examine_model",
    "load_suite",
    "model_hash",
    "no_weights",
    "percent",
    "read_curve",
    "read_ood",
    "read_record",
    "record_curves",
    "save_attacked",
    "verdict_key",
]
