"""What a search may change of a recipe: knobs with their ranges, made for the recipe at hand."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from generalist.core.errors import UserError, unknown
from generalist.mixing import REST, Points, Share
from generalist.recipes.schema import LearnerSection, Recipe
from generalist.recipes.studies import as_label

SEARCHED = {
    "gamma": "the last value of γ, or the share of the rest",
    "c": "epochs between resets",
    "start": "t', from when on learners are reset",
    "lr": "the learning rate of each learner",
    "trains": "which modules later learners move",
    "objectives": "the loss of the robust learners",
}
"""What can be searched, and what it is."""
LR_FACTOR = 5.0
"""Learning rates are searched this far up and down from the recipe's."""
STARTS = ("0", "1/4", "1/2", "5/8", "3/4")
TRAINS: Mapping[str, Any] = {
    "everything": None, "last 1/2": {"last": "1/2"}, "last 1/4": {"last": "1/4"}, "last 1/8": {"last": "1/8"},
}  # fmt: skip
OBJECTIVES: Mapping[str, Any] = {
    "adversarial": {"name": "adversarial", "beta": 1.0},
    "half-half": {"name": "adversarial", "beta": 0.5},
    "trades": {"name": "trades", "beta": 6.0},
    "mart": {"name": "mart"},
}


@dataclass(frozen=True)
class Knob:
    """One field of a recipe with what it may be: a range, whole numbers or a few choices by label.

    `given` is what the recipe has, as a value of the knob.
    """

    name: str
    given: Any
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    choices: Mapping[str, Any] = field(default_factory=dict)
    template: Any = None

    def distribution(self) -> Any:
        """As Optuna samples it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(tuple(self.choices))
        if self.whole:
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(self.low, self.high, log=self.log)

    def override(self, value: Any) -> Any:
        """What the field of the recipe becomes."""
        if self.choices:
            return self.choices[value]
        if isinstance(self.template, Points):
            at, values = [str(point) for point in self.template.at], list(self.template.values)
            return {"at": at, "values": [*values[:-1], round(value, 3)]}
        if isinstance(self.template, Share):
            return {"share": round(value, 3)}
        return int(value) if self.whole else float(f"{value:.3g}")


def knobs_of(recipe: Recipe, searched: Sequence[str] = tuple(SEARCHED)) -> list[Knob]:
    """The knobs that a recipe has, of the kinds that are searched."""
    for kind in searched:
        if kind not in SEARCHED:
            raise unknown("search", kind, SEARCHED)
    found = [knob for kind in dict.fromkeys(searched) for knob in _KINDS[kind](recipe)]
    if not found:
        raise UserError(f"{recipe.name} has nothing to search of {', '.join(searched)}")
    return found


def _gamma(recipe: Recipe) -> Iterator[Knob]:
    """Learners that share the simplex by breakpoints of their own must not exceed it together."""
    sections = recipe.learners.items()
    pointed = [name for name, section in sections if isinstance(section.gamma, Points)]
    for name, section in sections if len(recipe.learners) > 1 else ():
        gamma, field_name = section.gamma, f"learners.{name}.gamma"
        if isinstance(gamma, Points) and len(gamma.at) > 1:
            high = max(1 / len(pointed), float(gamma.values[-1])) if len(pointed) > 1 else 1.0
            yield Knob(field_name, float(gamma.values[-1]), high=high, template=gamma)
        elif isinstance(gamma, Share):
            yield Knob(field_name, gamma.of_rest, template=gamma)


def _is_reset(recipe: Recipe) -> bool:
    return len(recipe.learners) > 1 and recipe.mixing.redistribute != "never"


def _every(recipe: Recipe) -> Iterator[Knob]:
    if _is_reset(recipe):
        most = max(recipe.mixing.every_epochs, min(10, recipe.training.epochs // 3), 1)
        yield Knob("mixing.every_epochs", recipe.mixing.every_epochs, low=1, high=most, whole=True)


def _start(recipe: Recipe) -> Iterator[Knob]:
    if _is_reset(recipe):
        given = str(recipe.mixing.start)
        yield Knob("mixing.start", given, choices={start: start for start in dict.fromkeys((given, *STARTS))})


def _lr(recipe: Recipe) -> Iterator[Knob]:
    for name, section in recipe.learners.items():
        lr = float(section.optimizer.options["lr"])
        yield Knob(f"learners.{name}.optimizer.lr", lr, low=lr / LR_FACTOR, high=lr * LR_FACTOR, log=True)


def _trains(recipe: Recipe) -> Iterator[Knob]:
    """Of learners that others stand in for: who has the rest of γ must have all of the network."""
    for name, section in list(recipe.learners.items())[1:]:
        if section.gamma == REST:
            continue
        plain = section.model_dump(mode="json")["trains"]
        own = next((label for label, value in TRAINS.items() if value == plain), as_label(plain))
        yield Knob(f"learners.{name}.trains", own, choices={own: plain, **TRAINS})


def _objectives(recipe: Recipe) -> Iterator[Knob]:
    for name, section in recipe.learners.items():
        own = _objective(section)
        if own is not None:
            yield Knob(f"learners.{name}.objective", own, choices={**OBJECTIVES, own: section.objective.plain()})


def _objective(section: LearnerSection) -> str | None:
    """The choice that a learner has now; none where it is no robust learner of these kinds."""
    name, options = section.objective.name, section.objective.options
    if name == "adversarial":
        return {1.0: "adversarial", 0.5: "half-half"}.get(float(options.get("beta", 1.0)))
    return name if name in OBJECTIVES else None


_KINDS = {
    "gamma": _gamma, "c": _every, "start": _start, "lr": _lr, "trains": _trains, "objectives": _objectives,
}  # fmt: skip
