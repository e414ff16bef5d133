"""A search as all of its processes know it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalist.recipes.catalogue import as_texts, load_recipe
from generalist.recipes.schema import Recipe
from generalist.runs.studies.cost import Seconds
from generalist.runs.studies.ledger import GRACE_SECONDS, Ledger

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

CURVE, FOLDER, ERROR, HOPELESS = "curve", "folder", "error", "hopeless"
"""What a trial notes of itself: its validations, its run folder, and why it ended."""


@dataclass(frozen=True)
class Search:
    """What is searched, for all processes that share it; it travels to them."""

    base: str | Mapping[str, Any]
    method: str | None
    overrides: tuple[str, ...]
    objectives: tuple[str, ...]
    searched: tuple[str, ...]
    folder: Path
    storage: str
    seconds: Seconds
    root: str | None = None
    deadline: float | None = None
    most_trials: int | None = None
    seed: int = 0
    download: bool = False
    grace_seconds: float = GRACE_SECONDS

    @property
    def recipe(self) -> Recipe:
        return self.changed({})

    @property
    def name(self) -> str:
        return f"tune-{self.recipe.name}-{'-'.join(self.objectives)}"

    def changed(self, fields: Mapping[str, Any]) -> Recipe:
        """The recipe with these fields."""
        recipe = load_recipe(self.base, [*self.overrides, *as_texts(fields)], method=self.method)
        if self.root is None:
            return recipe
        return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": self.root})})

    def ledger(self) -> Ledger:
        return Ledger(self.storage, self.name, objectives=len(self.objectives), grace_seconds=self.grace_seconds)


def counts(trial: "FrozenTrial") -> bool:
    """Whether a trial has come to an end of its own."""
    return trial.state.name in ("COMPLETE", "PRUNED") or ERROR in trial.user_attrs
