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
            many images were corrupted. There may be `extra_corruptions` in the same form, which do not count in the
            means, `sequences_accuracy` (mean over the frames, in %) and `flip_rate` (in %).
    """
    try:
        table, extra = (
            {str(name): [float(value) for value in row] for name, row in rows.items()}
            for rows in (record["corruptions"], record.get("extra_corruptions", {}))
        )
        images = int(record["images"])
        sequences = {key: record.get(key) for key in ("sequences_accuracy", "flip_rate")}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError("a record of corruptions is not as this version writes it; measure them again") from None
    if not table or any(len(row) != SEVERITIES for row in (*table.values(), *extra.values())):
        raise UserError(f"a record of corruptions lacks severities, of which each has {SEVERITIES}; measure them again")
    means = [sum(row[level] for row in table.values()) / len(table) for level in range(SEVERITIES)]
    return {
        "corruptions": table | {f"{name} (extra)": row for name, row in extra.items()},
        "images": images,
        "means": means,
        "mean": sum(means) / SEVERITIES,
        **sequences,
    }


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
