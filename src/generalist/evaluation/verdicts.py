"""Verdicts on disk: an interrupted evaluation goes on where it stopped.

A verdict belongs to (model, threat, attack with its label and fields, seed, image with its label) and to nothing else,
so it is found again whatever the batch size, the order, the suite or the number of images asked for. Every line has a
digest; one that does not check is left out with a warning, and its verdicts are computed again.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from generalist.core.files import LONGEST_NAME, fingerprint, seal_holds, sealed
from generalist.core.rng import image_ids
from generalist.core.threat import Threat
from generalist.distributed import ranks
from generalist.evaluation.suite import Stage

VERSION = 2
"""Raised whenever an attack changes what it finds, or a line what it holds: older verdicts are then not used."""
LARGEST = "largest"
"""In a row: the norm of the largest perturbation of its images."""

COSTS = ("seconds", "forward", "backward", "nan")


def example_ids(x: Tensor, y: Tensor) -> list[str]:
    """A name for each image with its label, made of nothing but them."""
    return [
        f"{pixels & (2**64 - 1):016x}-{label}" for pixels, label in zip(image_ids(x).tolist(), y.tolist(), strict=True)
    ]


class Verdicts:
    """One JSON-lines file for each (model, threat, stage, seed) in a folder, or memory alone where there is none.

    `model` is the key of the model's verdicts. A folder that cannot be written to is said once, and then left alone.
    """

    def __init__(self, folder: Path | None, *, model: str, seed: int) -> None:
        self._folder, self.model, self.seed = folder, model, seed
        self._writable = True

    def _key(self, threat: Threat, stage: Stage) -> str:
        return fingerprint([VERSION, self.model, str(threat), stage.label, stage.spec(), self.seed])

    def _path(self, threat: Threat, stage: Stage) -> Path | None:
        if self._folder is None:
            return None
        readable = re.sub(r"[^\w.-]", "_", stage.attack)[:LONGEST_NAME]  # module:callable, or any registered name
        return self._folder / f"{readable}-{self._key(threat, stage)[:24]}.jsonl"

    def _files(self, threat: Threat, stage: Stage) -> list[Path]:
        """That of the main rank, and those of the others."""
        path = self._path(threat, stage)
        return [] if path is None else sorted(path.parent.glob(f"{path.stem}*.jsonl"))

    def read(self, threat: Threat, stage: Stage) -> tuple[dict[str, bool], dict[str, float]]:
        """Verdicts by example, the seconds and passes they took, and the largest perturbation.

        A line cut short by a kill is left out.
        """
        robust: dict[str, bool] = {}
        cost, largest = dict.fromkeys(COSTS, 0.0), 0.0
        for part in self._files(threat, stage):
            for row in read_rows(part, key=self._key(threat, stage)):
                robust |= {name: bool(verdict) for name, verdict in row["robust"].items()}
                for key in cost:
                    cost[key] += row[key]
                largest = max(largest, row[LARGEST])
        ranks.barrier()  # nobody writes before everybody has read
        return robust, {**cost, LARGEST: largest}

    def write(self, threat: Threat, stage: Stage, robust: Mapping[str, bool], cost: Mapping[str, float]) -> None:
        path = self._path(threat, stage)
        if path is None or not self._writable:
            return
        if ranks.rank() > 0:  # a file of its own: processes that append to one file could cut each other's lines
            path = path.with_name(f"{path.stem}-{ranks.rank()}{path.suffix}")
        verdicts = {name: int(verdict) for name, verdict in robust.items()}
        row = sealed({"of": self._key(threat, stage), "robust": verdicts, **cost})
        try:
            append_row(path, row)
        except OSError as error:
            self._writable = False
            reason = error.strerror or error
            warnings.warn(f"verdicts are not kept, {path.parent} cannot be written to: {reason}", stacklevel=2)

    def forget(self, threat: Threat, stage: Stage) -> None:
        """Remove verdicts that turned out to be wrong; the main rank calls this."""
        for path in self._files(threat, stage):
            path.unlink(missing_ok=True)


class ImageRows:
    """What was found of each image, by its name, on disk: an interrupted analysis goes on where it stopped.

    `key` has all that decides what is found; `kind` is what the file is called by. Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None, kind: str, key: str) -> None:
        self._folder, self._kind, self._key = folder, kind, key
        self._writable = folder is not None

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        paths = [] if self._folder is None else sorted(self._folder.glob(f"{self._kind}-{self._key[:24]}*.jsonl"))
        for path in paths:
            for row in read_rows(path, key=self._key):
                found |= row["found"]
        ranks.barrier()  # nobody writes before everybody has read
        return found

    def write(self, found: Mapping[str, Any]) -> None:
        if self._folder is None or not self._writable:
            return
        part = f"-{ranks.rank()}" if ranks.rank() else ""
        try:
            path = self._folder / f"{self._kind}-{self._key[:24]}{part}.jsonl"
            append_row(path, sealed({"of": self._key, "found": dict(found)}))
        except OSError as error:
            self._writable = False
            reason = error.strerror or error
            warnings.warn(f"results are not kept, {self._folder} cannot be written to: {reason}", stacklevel=2)


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a JSON-lines file, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        _drop_cut_line_(file)
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _drop_cut_line_(file: BinaryIO) -> None:
    """A kill may have cut the last line short."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def read_rows(path: Path, *, key: str) -> Iterator[dict[str, Any]]:
    """The lines that are whole and of this file; others are counted, but for a last one that was cut short."""
    text = path.read_bytes().decode("utf-8", "replace")
    damaged = 0
    for line in text.splitlines(keepends=True):
        try:
            row = json.loads(line)
            good = bool(seal_holds(row)) and row["of"] == key
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if not line.endswith("\n"):
                continue  # a kill cuts a line short
            good = False
        if good:
            yield row
        elif line.strip():
            damaged += 1
    if damaged:
        warnings.warn(f"{path}: {damaged} damaged line(s) of verdicts are computed again", stacklevel=2)
