"""Which state of a model is kept: the best on the selection split, or the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from generalist.core.errors import UserError
from generalist.models import check_saved, read_extra, save_model

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
    """`models/<name>.safetensors` always holds the state of each model that the rule prefers so far.

    `about` is added to every card, such as the run that the model is of.
    """

    def __init__(self, folder: Path, *, rule: Rule, about: Mapping[str, Any] | None = None) -> None:
        self.folder, self.rule, self.about = folder, rule, dict(about or {})

    def consider(self, name: str, model: nn.Module, scores: Scores, *, epoch: int, step: int) -> bool:
        """Keep the model where it beats the kept one; a tie goes to the earlier."""
        record = {"selected_by": self.rule, "epoch": epoch, "step": step, **scores.record()}
        kept = self.kept(name)
        if self.rule != "last" and kept and kept["step"] != step and kept["score"] >= record["score"]:
            return False
        save_model(model, self.folder / name, extra={"selection": record, "model": name, **self.about})
        return True

    def damage(self, name: str) -> str | None:
        """What is wrong with the files of the model kept so far, if anything; a changed card is an error."""
        self.kept(name)
        try:
            check_saved(self.folder / name)
        except UserError as error:
            return str(error)
        return None

    def kept(self, name: str) -> dict[str, Any] | None:
        """What the card of the model kept so far says; None where none was kept yet."""
        if not (self.folder / f"{name}.json").exists():
            return None
        card = read_extra(self.folder / name)
        for field, ours in (("model", name), ("run", self.about.get("run"))):
            if ours is not None and card.get(field, ours) != ours:
                raise UserError(
                    f"{self.folder / name}.json is of another {field}; restore the file that this run wrote"
                )
        record: dict[str, Any] = card["selection"]
        return record
