"""Accuracy class by class: natural, robust, and under every threat; and what changes between two models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from generalist.core.errors import UserError, unknown
from generalist.core.names import UNION
from generalist.evaluation.accuracy import Change, paired_change
from generalist.evaluation.records import robust_images
from generalist.evaluation.tradeoff import NATURAL

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Classwise:
    """Verdicts of N images with their classes.

    Args:
        classes: The names of the K classes, in the order of their labels.
        labels: int64 [N].
        right: Which images are right, bool [N] each: `natural`, under each threat, and under all of them (`true
            union`) where there are several.
        column: Of which column of the suite the threats are; empty where that goes without saying.
    """

    classes: tuple[str, ...]
    labels: Array
    right: Mapping[str, Array]
    column: str = ""

    @classmethod
    def of(
        cls, labels: Array, natural: Array, robust: Mapping[str, Array], *, classes: Sequence[str], column: str = ""
    ) -> "Classwise":
        """From verdicts, natural and per threat; the union of several is added."""
        union = {UNION: np.logical_and.reduce([natural, *robust.values()])} if len(robust) > 1 else {}
        return cls(tuple(classes), labels, {NATURAL: natural, **robust, **union}, column)

    @property
    def measures(self) -> tuple[str, ...]:
        """`natural`, the threats, and `true union` where there are several."""
        return tuple(self.right)

    @property
    def robust(self) -> str:
        """The measure that sums up robustness: the union, or the only threat."""
        return self.measures[-1]

    @property
    def counts(self) -> Array:
        """Images per class, int64 [K]."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def accuracy(self, measure: str) -> Array:
        """% right per class, float64 [K]; NaN where a class has no image."""
        right = np.bincount(self.labels[self.right[measure]], minlength=len(self.classes))
        counts = self.counts
        return np.divide(100.0 * right, counts, out=np.full(len(counts), np.nan), where=counts > 0)

    def overall(self, measure: str) -> float:
        """% right of all images."""
        return 100.0 * float(self.right[measure].mean())

    def weakest(self, measure: str, *, most: int | None = None) -> list[int]:
        """Classes, those with the lowest accuracy first; classes without images are left out."""
        accuracy = self.accuracy(measure)
        order = np.argsort(accuracy, kind="stable")
        return [int(label) for label in order if not np.isnan(accuracy[label])][:most]

    def record(self) -> dict[str, Any]:
        """For JSON: per measure the figure of all images and those of the classes."""
        return {
            "images": self.counts.tolist(),
            "overall": {measure: round(self.overall(measure), 2) for measure in self.measures},
            "classes": {
                measure: [None if np.isnan(value) else round(value, 2) for value in self.accuracy(measure).tolist()]
                for measure in self.measures
            },
        }


def labels_of(record: Mapping[str, Any]) -> Array:
    """The class of each image of a record, int64 [N].

    Records of older versions do not list them, but the names of their images end with them.
    """
    again = "run generalist eval again"
    try:
        named = [int(name.rpartition("-")[2]) for name in record["examples"]]
    except (ValueError, AttributeError):
        named = None
    labels = record.get("labels", named)
    if labels is None:
        raise UserError(f"the record does not say the classes of its images; {again}")
    if len(labels) != record["images"] or labels != (named or labels) or min(labels) < 0:
        raise UserError(f"the labels of the record are not those of its images; {again}")
    return np.array(labels, dtype=np.int64)


def class_names(known: Sequence[str], count: int) -> tuple[str, ...]:
    """As many names as there are classes: the known ones, then numbers."""
    return (*map(str, known[:count]), *(str(label) for label in range(len(known), count)))


def classwise(record: Mapping[str, Any], *, column: str | None = None, classes: Sequence[str] = ()) -> Classwise:
    """Class-wise accuracy of an evaluation record.

    Args:
        record: What `SuiteResult.record()` returned, or `Run.record` read.
        column: A column of its suite, such as `AA`; the last one if not given.
        classes: The names of the classes; where there are none, their numbers.

    Returns:
        The verdicts with their classes; its accuracies, weighted by the number of images, give those of the record.
    """
    labels = labels_of(record)
    natural, robust = robust_images(record)
    columns = list(next(iter(robust.values())))
    column = columns[-1] if column is None else column
    if column not in columns:
        raise unknown("column of the suite", column, columns)
    count = max(len(classes), int(labels.max()) + 1)
    kept = {threat: row[column].numpy() for threat, row in robust.items()}
    return Classwise.of(labels, natural.numpy(), kept, classes=class_names(classes, count), column=column)


def changes(after: Classwise, before: Classwise, measure: str) -> list[Change | None]:
    """Per class, in points with a 95 % interval, paired image by image; None where a class has no image.

    Both must be of the same images, in the same order.
    """
    if not np.array_equal(after.labels, before.labels):
        raise UserError("class-wise changes are paired image by image; the two models were judged on different images")
    differing = torch.from_numpy(after.right[measure]), torch.from_numpy(before.right[measure])
    found: list[Change | None] = []
    for label in range(len(after.classes)):
        rows = torch.from_numpy(after.labels == label)
        found.append(paired_change(*(right[rows] for right in differing)) if rows.any() else None)
    return found


def payers(after: Classwise, before: Classwise, measure: str) -> list[tuple[int, Change]]:
    """The classes that lose more than the choice of images explains, the largest loss first."""
    found = [(label, change) for label, change in enumerate(changes(after, before, measure)) if change is not None]
    return sorted(((label, change) for label, change in found if change.points < -change.margin),
                  key=lambda item: item[1].points)  # fmt: skip
