"""Records of measurements other than attacks on fixed radii: corruptions, and accuracy against ε."""

from collections.abc import Mapping
from typing import Any

from generalist.core.errors import UserError
from generalist.core.threat import parse_fraction
from generalist.evaluation.curve import HEADS, curve_rows
from generalist.report.page.results import NORM_NAMES, pretty

SEVERITIES = 5


def corruptions_view(record: Mapping[str, Any]) -> dict[str, Any]:
    """The heat map of corruptions.

    Args:
        record: `corruptions` has the accuracies in % at the severities 1 to 5 by the corruption's name, `images` how
            many images were corrupted. `severity5` and `mean`, the means at severity 5 and over all severities, are
            recomputed. `sequences_accuracy` (mean over the frames, in %) and `flip_rate` may be there.
    """
    try:
        table = {str(name): [float(value) for value in row] for name, row in record["corruptions"].items()}
        images = int(record["images"])
        sequences = {key: record.get(key) for key in ("sequences_accuracy", "flip_rate")}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError("the record of corruptions is not as this version writes it; measure it again") from None
    if not table or any(len(row) != SEVERITIES for row in table.values()):
        raise UserError(f"the record of corruptions lacks severities: each has {SEVERITIES}; measure it again")
    means = [sum(row[level] for row in table.values()) / len(table) for level in range(SEVERITIES)]
    return {"corruptions": table, "images": images, "means": means, "mean": sum(means) / SEVERITIES, **sequences}


def curve_view(record: Mapping[str, Any]) -> dict[str, Any]:
    """Distances of the images by threat, in order, and the figures of the table."""
    figures = curve_rows(record)
    threats = [
        {
            "threat": pretty(threat),
            "norm": NORM_NAMES.get(row["norm"], row["norm"]),
            "eps": float(parse_fraction(row["eps"])),
            "eps_max": row["eps_max"],
            "distances": sorted(float(f"{each:.5g}") for each in row["distances"] if each is not None),
            "figures": figures[threat],
            "auc": row["auc"],
        }
        for threat, row in record["threats"].items()
    ]
    return {"natural": record["natural"], "images": record["images"], "heads": list(HEADS), "threats": threats}
