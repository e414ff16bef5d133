"""Which state of a model is kept: the best on held-out data, or the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from generalist.models import read_extra, save_model

Rule = Literal["validation", "last", "test"]


@dataclass(frozen=True)
class Scores:
    """Percentages of one model on one split."""

    natural: float
    robust: dict[str, float]

    @property
    def total(self) -> float:
        """Natural accuracy plus the mean of PGD-20 over the threats, as the papers select."""
        return self.natural + (sum(self.robust.values()) / len(self.robust) if self.robust else 0.0)

    def record(self) -> dict[str, Any]:
        return {"natural": self.natural, "robust": self.robust, "score": round(self.total, 4)}


class Selection:
    """`models/<name>.safetensors` always holds the state of each model that the rule prefers so far."""

    def __init__(self, folder: Path, *, rule: Rule, data: Mapping[str, Any] | None = None) -> None:
        self.folder, self.rule, self.data = folder, rule, dict(data or {})

    def consider(self, name: str, model: nn.Module, scores: Scores, *, epoch: int, step: int) -> bool:
        """Keep the model where it beats the kept one; a tie goes to the earlier."""
        record = {"selected_by": self.rule, "epoch": epoch, "step": step, **scores.record()}
        kept = self.kept(name)
        if self.rule != "last" and kept and kept["step"] != step and kept["score"] >= record["score"]:
            return False
        save_model(model, self.folder / name, extra={"selection": record, "data": self.data})
        return True

    def kept(self, name: str) -> dict[str, Any] | None:
        if not (self.folder / f"{name}.json").exists():
            return None
        record: dict[str, Any] = read_extra(self.folder / name)["selection"]
        return record
