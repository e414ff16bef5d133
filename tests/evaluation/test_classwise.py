"""Accuracy by class follows from a record, and adds up to its figures."""

from typing import Any

import numpy as np
import pytest

import generalist
from generalist.core.errors import UserError
from generalist.evaluation.classwise import changes, classwise, labels_of, payers


def small(labels: list[int], natural: list[int], survived: list[int]) -> dict[str, Any]:
    return {
        "suite": "pgd20", "stages": {"PGD20": {}}, "columns": {"PGD20": ["PGD20"]}, "images": len(labels),
        "accuracy": {"linf:1/4": {"PGD20": 0.0}}, "labels": labels,
        "examples": [f"{place:016x}-{label}" for place, label in enumerate(labels)],
        "per_image": {"natural": natural, "linf:1/4": {"PGD20": survived}},
    }  # fmt: skip


def test_classes_add_up_to_the_record() -> None:
    model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
    record = generalist.evaluate(model, "digits", threats=["linf:1/100", "l2:1/20"], images=80).record()
    found = classwise(record)
    assert found.counts.sum() == record["images"] == 80
    wanted = {"natural": record["natural"], **{t: row["PGD20"] for t, row in record["accuracy"].items()}}
    assert 0 < record["natural"] < 100
    for measure in found.measures:
        total = np.nansum(found.accuracy(measure) * found.counts) / found.counts.sum()
        assert round(total, 2) == pytest.approx(wanted[measure], abs=0.011)
        assert round(found.overall(measure), 2) == pytest.approx(wanted[measure], abs=0.011)
    older = {key: value for key, value in record.items() if key != "labels"}
    assert labels_of(older).tolist() == record["labels"]


def test_natural_robust_and_absent_classes() -> None:
    found = classwise(small([0, 0, 2, 2], [1, 1, 1, 0], [1, 0, 1, -1]), classes=["cat", "dog", "eel"])
    assert found.accuracy("natural").tolist()[::2] == [100.0, 50.0]
    assert found.accuracy("linf:1/4").tolist()[::2] == [50.0, 50.0]
    assert np.isnan(found.accuracy("natural")[1])
    assert found.weakest("natural") == [2, 0]
    assert found.record()["classes"]["natural"] == [100.0, None, 50.0]


def test_changes_are_paired_and_the_payers_are_named() -> None:
    labels = [0] * 8 + [1] * 8
    before = classwise(small(labels, [1] * 16, [1] * 8 + [0] * 8))
    after = classwise(small(labels, [1] * 16, [0] * 7 + [1] + [1] * 8))
    cat, dog = changes(after, before, "linf:1/4")
    assert (cat.points, dog.points) == (pytest.approx(-87.5), 100.0)
    assert [label for label, _ in payers(after, before, "linf:1/4")] == [0]
    assert payers(before, before, "linf:1/4") == []
    with pytest.raises(UserError, match="different images"):
        changes(after, classwise(small(labels[::-1], [1] * 16, [1] * 16)), "linf:1/4")


def test_labels_that_are_not_known_or_wrong_are_refused() -> None:
    record = small([0, 1], [1, 1], [1, 1])
    with pytest.raises(UserError, match="not those of its images"):
        labels_of(record | {"labels": [1, 1]})
    unnamed = {key: value for key, value in record.items() if key != "labels"} | {"examples": ["a", "b"]}
    with pytest.raises(UserError, match="run generalist eval again"):
        labels_of(unnamed)
    with pytest.raises(UserError, match="unknown column"):
        classwise(record, column="AA")
