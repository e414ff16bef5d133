"""Names that evaluations, tables and the command line share; known before torch is imported."""

MEAN, UNION = "mean over norms", "true union"
"""What sums up several threats is called: the mean of the figures; the share of images robust to all of them."""

SUITE_NAMES = ("pgd20", "quick", "paper", "autoattack")
"""The shipped suites, the strongest last."""

CURVE = "curve"
"""What `--suite` calls the evaluation by minimal distances, which is no list of attacks."""
