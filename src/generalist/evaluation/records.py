"""Evaluation records as files: read back only if their figures are those of their verdicts."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from generalist.attacks import STANDARD
from generalist.core.errors import UserError
from generalist.core.files import read_json, seal_holds
from generalist.core.names import MEAN, UNION
from generalist.evaluation.accuracy import percent

FORMER_ROWS = {"mean union": MEAN}
"""What rows of older records are called now."""
AGAIN = "remove it and run generalist eval again"
"""What to do about a record that cannot be believed."""


def read_sealed(path: Path, *, digest_needed: bool = True) -> dict[str, Any]:
    """A record whose digest holds; one without a digest is refused too, unless it is not needed."""
    try:
        record: dict[str, Any] = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {AGAIN}") from None
    holds = seal_holds(record)
    if holds is False or (digest_needed and not holds):
        raise UserError(f"{path} was changed since it was written (its digest differs); {AGAIN}")
    return record


def read_record(path: Path) -> dict[str, Any]:
    """A record that `generalist eval` wrote. Its percentages are recomputed from the verdicts of its images."""
    record = read_sealed(path, digest_needed=False)
    if seal_holds(record) is None:
        if "columns" in record:  # which came with the digest
            raise UserError(f"{path} was changed since it was written (it has no digest); {AGAIN}")
        warnings.warn(f"{path} is of an older version and has no digest: changes to it would not show", stacklevel=2)
    try:
        record["accuracy"] = {FORMER_ROWS.get(row, row): values for row, values in record["accuracy"].items()}
        natural, accuracy = _recomputed(record)
        differs = natural != record["natural"] or accuracy != record["accuracy"]
        _ = record["suite"], len(record["examples"]), record["stages"].items()
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise UserError(f"{path} is not an evaluation record; {AGAIN}") from None
    if differs:
        raise UserError(f"{path} has figures that are not those of its verdicts; {AGAIN}")
    return record


def robust_images(record: Mapping[str, Any]) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
    """Which images of a record are right, bool [N]: without an attack, and by threat and column of the suite."""
    verdicts = dict(record["per_image"])
    natural = torch.tensor(verdicts.pop("natural"), dtype=torch.bool)
    robust: dict[str, dict[str, Tensor]] = {}
    for threat, stages in verdicts.items():
        survived = {label: torch.tensor(row, dtype=torch.int8) != 0 for label, row in stages.items()}
        columns = record["accuracy"][threat]
        robust[threat] = {name: natural.clone() for name in columns}
        for name in columns:
            for label in _stages_of(name, record):
                robust[threat][name] &= survived[label]
    return natural, robust


def _recomputed(record: Mapping[str, Any]) -> tuple[float, dict[str, dict[str, float]]]:
    """Natural accuracy and the table, from nothing but the verdicts."""
    natural, robust = robust_images(record)
    if not len(natural) == record["images"] == len(record["examples"]) == len(record.get("labels", natural)):
        raise ValueError("one verdict, one name and one label per image")
    table = {threat: {name: percent(kept) for name, kept in row.items()} for threat, row in robust.items()}
    if len(table) > 1:
        names = list(next(iter(table.values())))
        mean = {name: round(sum(row[name] for row in table.values()) / len(table), 2) for name in names}
        union = {name: percent(torch.stack([row[name] for row in robust.values()]).all(0)) for name in names}
        table |= {MEAN: mean, UNION: union}
    return percent(natural), table


def _stages_of(column: str, record: Mapping[str, Any]) -> list[str]:
    """The stages that a column is made of; records of older versions do not say it."""
    labels = list(record["stages"])
    if "columns" in record:
        return list(record["columns"][column])
    if column in labels:
        return [column]
    return list(STANDARD) if record["suite"] == "paper" else labels
