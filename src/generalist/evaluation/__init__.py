"""What a model is worth. accuracy: natural and under PGD, a verdict for every image."""

from generalist.evaluation.accuracy import Evaluation, evaluate_split, percent

__all__ = ["Evaluation", "evaluate_split", "percent"]
