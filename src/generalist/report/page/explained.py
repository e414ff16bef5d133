"""What a model takes for what and looks at, as the page's class bars, confusions, examples and gallery."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generalist.core.names import UNION
from generalist.evaluation.classwise import classwise
from generalist.evaluation.explained import Explanation, Gallery
from generalist.report.comparison import NATURAL
from generalist.report.page.pictures import heated, magnified, picture
from generalist.report.page.results import pretty

GALLERY = 8
"""So many images of a kind are shown."""


def view_name(view: str) -> str:
    names = {NATURAL: "unattacked", UNION: "all of them (true union)"}
    return names.get(view) or pretty(view)


def classes_view(record: Mapping[str, Any], look: Explanation | None, classes: Sequence[str]) -> dict[str, Any] | None:
    """Accuracy by class: of the record where there is one, else of the images that were looked at."""
    if record:
        found = classwise(record, classes=classes)
        source = f"first {len(found.labels)} test images of {record.get('data', 'the data')}, suite {record['suite']}"
    elif look:
        found, source = look.classwise, f"first {len(look.labels)} test images of {look.about['data']}, {look.attack}"
    else:
        return None
    accuracy = {view_name(measure): values for measure, values in found.record()["classes"].items()}
    return {"names": list(found.classes), "counts": found.counts.tolist(), "accuracy": accuracy, "of": source}


def confusions_view(look: Explanation) -> list[dict[str, Any]]:
    """Per threat the classes that are most often taken for another one."""
    return [
        {
            "view": view_name(view),
            "most": [
                f"{look.classes[c.label]} → {look.classes[c.predicted]} ({c.percent:.0f} %)"
                for c in look.confusions(view, most=4)
            ],
        }
        for view in look.views
    ]


def examples_view(look: Explanation) -> list[dict[str, Any]]:
    """Images with what is said of them, what an attack changed, and what the model looks at."""
    rows = []
    for one in look.examples:
        views = []
        for view in look.views:
            attacked = one.x_adv.get(view)
            pixels = one.image if attacked is None else (attacked * 255).round().clip(0, 255).astype(np.uint8)
            change = one.perturbation.get(view)
            changed, times = ("", 0.0) if change is None or not change.any() else magnified(change)
            views.append({
                "view": view_name(view),
                "image": picture(pixels),
                "changed": changed,
                "times": round(times, 1),
                "heat": heated(pixels, one.heat[view]),
                "said": look.classes[one.predicted[view]],
                "sure": round(100 * one.confidence[view]),
                "right": one.predicted[view] == one.label,
            })  # fmt: skip
        rows.append({"label": look.classes[one.label], "views": views})
    return rows


def gallery_view(
    found: Gallery, look: Explanation, pixels: Callable[[Sequence[int]], NDArray[np.uint8]]
) -> list[dict[str, Any]]:
    """Images that one run alone gets right, or wrong, by threat.

    Args:
        found: Which images.
        look: Any of the explanations, for labels and names.
        pixels: Indices → images, uint8 [N, C, H, W].
    """
    rows = []
    both = [("Only {} is right", found.only_right), ("Only {} is wrong", found.only_wrong)]
    for view in (view for view in found.views if view != NATURAL):
        for words, of in both[: 1 if len(found.only_right) == 2 else 2]:  # of two runs the second says the same
            for name, views in of.items():
                places = views[view][:GALLERY]
                if not places:
                    continue
                labels = [look.classes[int(look.labels[place])] for place in places]
                rows.append({
                    "threat": view_name(view),
                    "words": words.format(name),
                    "count": len(views[view]),
                    "images": [
                        {"src": picture(image), "label": label}
                        for image, label in zip(pixels(places), labels, strict=True)
                    ],
                })  # fmt: skip
    return rows
