"""Verdicts on disk: an interrupted evaluation goes on where it stopped, a finished one costs nothing.

A verdict belongs to (model, threat, attack with its fields, seed, image with its label) and to nothing else, so it is
found again whatever the batch size, the order, the suite or the number of images asked for.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from generalist.core import ranks
from generalist.core.rng import image_ids
from generalist.core.threat import Threat
from generalist.evaluation.suite import Stage

VERSION = 1
"""Raised whenever an attack changes what it finds: verdicts of an older one are then not used."""


def model_hash(model: nn.Module) -> str:
    """Of the architecture as printed and of every tensor, normalisation included."""
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def example_ids(x: Tensor, y: Tensor) -> list[str]:
    """A name for each image with its label, made of nothing but them."""
    return [
        f"{pixels & (2**64 - 1):016x}-{label}" for pixels, label in zip(image_ids(x).tolist(), y.tolist(), strict=True)
    ]


class Verdicts:
    """One JSON-lines file for each (model, threat, stage, seed) in a folder, or memory alone where there is none."""

    def __init__(self, folder: Path | None, *, model: str, seed: int) -> None:
        self._folder, self.model, self.seed = folder, model, seed

    def _path(self, threat: Threat, stage: Stage) -> Path | None:
        if self._folder is None:
            return None
        key = json.dumps([VERSION, self.model, str(threat), stage.spec(), self.seed], sort_keys=True)
        return self._folder / f"{stage.attack}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.jsonl"

    def read(self, threat: Threat, stage: Stage) -> tuple[dict[str, bool], dict[str, float]]:
        """Verdicts by example, and the seconds and passes they took; a line cut short by a kill is left out."""
        path = self._path(threat, stage)
        robust: dict[str, bool] = {}
        cost = {"seconds": 0.0, "forward": 0.0, "backward": 0.0, "nan": 0.0}
        for part in sorted(path.parent.glob(f"{path.stem}*.jsonl")) if path is not None else ():
            for row in _rows(part):
                robust |= {name: bool(verdict) for name, verdict in row["robust"].items()}
                for key in cost:
                    cost[key] += row.get(key, 0.0)
        ranks.wait_for_all()  # nobody writes before everybody has read
        return robust, cost

    def write(self, threat: Threat, stage: Stage, robust: Mapping[str, bool], cost: Mapping[str, float]) -> None:
        path = self._path(threat, stage)
        if path is None:
            return
        if ranks.rank() > 0:  # a file of its own: processes that append to one file could cut each other's lines
            path = path.with_name(f"{path.stem}-{ranks.rank()}{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"robust": {name: int(verdict) for name, verdict in robust.items()}, **cost}
        whole = not path.exists() or path.read_bytes()[-1:] in (b"\n", b"")
        with open(path, "a") as file:
            file.write(("" if whole else "\n") + json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _rows(path: Path | None) -> Iterator[dict[str, Any]]:
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
