"""Names that evaluations, tables and the command line share; known before torch is imported."""

MEAN, UNION = "mean over norms", "true union"
"""What sums up several threats is called: the mean of the figures; the share of images robust to all of them."""

SUITE_NAMES = ("pgd20", "quick", "paper", "autoattack")
"""The shipped suites, the strongest last."""

RECIPE_FILE = "recipe.yaml"
"""What a folder has that holds a run."""

CURVE, OOD = "curve", "ood"
"""What `--suite` calls the evaluations by minimal distances, and by corruptions and perturbation sequences."""

ANALYSES = (CURVE, OOD)
"""Suites that are no list of attacks: each has a record, a table and a figure of its own."""

TRACKER_NAMES = ("tensorboard", "mlflow", "wandb")
"""The tools that can follow a run while it trains."""

EXPORT_FORMATS = ("safetensors", "pt2", "onnx", "hub-folder", "robustbench")
"""What a model can be exported to; the last is the entry of an evaluation, without the model."""
