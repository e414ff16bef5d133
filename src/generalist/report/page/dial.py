"""The record of a dial as the page's slider, its examples and the way between the learners."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from generalist.core.names import MEAN, UNION
from generalist.report.page.pictures import picture
from generalist.report.page.results import pretty


def dial_view(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a dial; `record` is what `Run.dial_record` read."""
    examples = record["examples"]
    shape = tuple(examples["shape"])

    def shown(text: str) -> str:
        return picture(np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(shape))

    points = [
        {
            "place": place,
            **{key: point[key] for key in ("weights", "natural", "robust", "on_front", "endpoint")},
            **{key: point[key] for key in ("by_class", "losses")},
            "mean": point[MEAN],
            "union": point[UNION],
            "modules": bool(point["modules"]),
            "said": [one["said"] for one in said],
            "attacked": [{threat: shown(text) for threat, text in one["attacked"].items()} for one in said],
        }
        for place, (point, said) in enumerate(zip(record["points"], examples["of_points"], strict=True))
    ]
    chosen = record.get("chosen")
    return {
        "endpoints": list(record["endpoints"]),
        "threats": {threat: pretty(threat) for threat in record["threats"]},
        "images": record["images"],
        "attack": record["attack"],
        "seconds": record["seconds"],
        "classes": record["classes"],
        "points": points,
        "pictures": [shown(text) for text in examples["images"]],
        "labels": [one["label"] for one in examples["of_points"][0]],
        "beside": [
            {"name": name, "natural": row["natural"], "robust": row["robust"]} for name, row in record["beside"].items()
        ],
        "barriers": [{**one, "measure": pretty(one["measure"])} for one in record["barriers"]],
        "chosen": None if chosen is None else _place(record, chosen),
        "rule": chosen["rule"] if chosen else "",
    }


def _place(record: Mapping[str, Any], chosen: Mapping[str, Any]) -> int | None:
    """Which of the points was chosen."""
    same = (
        place
        for place, row in enumerate(record["points"])
        if row["weights"] == chosen["weights"] and row["modules"] == chosen["modules"]
    )
    return next(same, None)


def dial_call(folder: str, record: Mapping[str, Any]) -> str:
    """The Python call that gives the same points again, as they are kept in the folder."""
    several = record["runs"] if len(record["runs"]) > 1 else folder
    options = {
        "between": list(record["endpoints"]),
        "beyond": record["beyond"],
        "points": len(record["points"]),
        "by": record["by"],
        "images": record["images"],
        "attack": record["attack"],
        "seed": record["seed"],
    }
    return f"generalist.dial({several!r}, {', '.join(f'{key}={value!r}' for key, value in options.items())})"
