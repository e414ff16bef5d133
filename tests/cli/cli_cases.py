"""How the tests talk to the command line."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SMALL = (
    "training.epochs=3", "training.batch_size=40", "data.limit=120", "model.width=4",
    "validation.images=40", "validation.steps=2", "validation.every_epochs=1",
)  # fmt: skip
TINY = [part for change in SMALL for part in ("--set", change)]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if not line.startswith("warning: ")]


Cli = Callable[..., Outcome]
