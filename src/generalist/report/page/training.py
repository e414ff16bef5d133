"""The metrics of a run as the page's curves, and its summary as the cost."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from generalist.report.page.results import pretty

CURVE_POINTS = 150
"""A line has at most about so many points."""

Series = dict[str, list[list[float]]]


def training_view(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Lines of [epoch, value] by panel and name, the epochs after which weights were redistributed, and the split."""
    epochs = [row for row in metrics if row["kind"] == "epoch"]
    judged = [row for row in metrics if row["kind"] == "validation"]
    panels: dict[str, Series] = {}

    def add(panel: str, name: str, epoch: float, value: float | None) -> None:
        if value is not None and np.isfinite(value):
            panels.setdefault(panel, {}).setdefault(name, []).append([epoch, float(f"{value:.5g}")])

    for row in judged:
        for name, scores in row["models"].items():
            add("Accuracy unattacked, %", name, row["epoch"], scores["natural"])
            for threat, value in scores["robust"].items():
                add(f"Accuracy under {pretty(threat)}, %", name, row["epoch"], value)
    for row in epochs:
        for name, means in row["train"].items():
            add("Training loss", name, row["epoch"], means["loss"])
        for name, weight in row["gamma"].items() if len(row["gamma"]) > 1 else ():
            add("Weight in the global model, γ", name, row["epoch"], weight)
        for name, distance in row.get("drift", {}).get("from_global", {}).items():
            add("Distance from the global model, ℓ2", name, row["epoch"], distance)
    thin = {panel: {name: _thinned(line) for name, line in series.items()} for panel, series in panels.items()}
    split = judged[-1]["split"] if judged else ""
    return {"panels": thin, "resets": [row["epoch"] for row in epochs if row.get("redistributed")], "split": split}


def _thinned(points: list[list[float]]) -> list[list[float]]:
    every = -(-len(points) // CURVE_POINTS)
    return points if every == 1 else [*points[:-1:every], points[-1]]


def cost_view(summary: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """None for what is not known: of a mixture, of a run of an earlier version."""
    return {
        "seconds": summary.get("seconds"),
        "cpu_seconds": summary.get("cpu_seconds"),
        "memory": summary.get("peak_memory_mib"),
        "in_at": summary.get("cost_in_at"),
        "parameters": summary.get("parameters"),
        "attack_seconds": record.get("wall_seconds"),
    }
