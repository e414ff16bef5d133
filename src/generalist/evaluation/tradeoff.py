"""Mixtures traded off against each other: which no other beats, which one meets a wish, and where a way dips."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from generalist.core.errors import UserError, unknown
from generalist.core.names import MEAN, UNION
from generalist.evaluation.accuracy import interval, percent
from generalist.evaluation.glance import NATURAL, Glance
from generalist.mixing import MergeWeights

WISHES = (NATURAL, "linf", "l2", "l1", "mean", "union")
"""What can be asked for: natural accuracy, robust accuracy under the first threat of a norm, the mean of the robust
accuracies, and the true union."""
BARRIER_POINTS = 3.0
"""A mixture this many points of accuracy below the line between its endpoints may show a barrier."""
Z = 1.959964  # 95 %


@dataclass(frozen=True, eq=False)
class MixturePoint:
    """A mixture with its verdicts: [N] for `natural`, and for each threat (right unattacked and attacked)."""

    mixture: MergeWeights
    verdicts: Mapping[str, Tensor]
    glance: Glance = field(default_factory=Glance)
    on_front: bool = False
    chosen_by: str = ""  # the wish that it was picked by

    def __str__(self) -> str:
        kept = ", an endpoint as its run keeps it" if self.is_endpoint else ""
        return f"{self.mixture}{kept}: {self.figures()}"

    @property
    def weights(self) -> Mapping[str, float]:
        """Of every endpoint, for all modules that have no weights of their own."""
        return self.mixture.each

    @property
    def modules(self) -> Mapping[str, Mapping[str, float]]:
        """The weights of the modules that have their own."""
        return self.mixture.modules

    @property
    def is_endpoint(self) -> bool:
        return self.mixture.endpoint is not None

    @property
    def natural(self) -> float:
        """Accuracy without an attack, in percent."""
        return percent(self.verdicts[NATURAL])

    @property
    def robust(self) -> dict[str, float]:
        """Accuracy under each threat, in percent."""
        return {threat: percent(verdicts) for threat, verdicts in self.verdicts.items() if threat != NATURAL}

    @property
    def mean(self) -> float:
        """The mean of the robust accuracies, in percent."""
        return round(self.value("mean"), 2)

    @property
    def union(self) -> float:
        """Images right under every threat, in percent: the true union."""
        return round(self.value("union"), 2)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Images that are right, natural and under each threat."""
        return tuple(int(verdicts.sum()) for verdicts in self.verdicts.values())

    def value(self, wish: str) -> float:
        """One of `WISHES` in percent, not rounded."""
        images = len(self.verdicts[NATURAL])
        if wish == "mean":
            _, *robust = self.counts
            return 100 * sum(robust) / len(robust) / images
        if wish == "union":
            return 100 * int(torch.stack(list(self.verdicts.values())).all(0).sum()) / images
        return 100 * int(self.verdicts[measured_by(wish, list(self.verdicts))].sum()) / images

    def by_class(self, labels: Tensor, classes: int) -> dict[str, list[float | None]]:
        """Accuracy per class and measure, in percent; None for a class without images. `labels` [N] of the images."""
        found: dict[str, list[float | None]] = {}
        for measure, verdicts in self.verdicts.items():
            members = [verdicts[labels == number] for number in range(classes)]
            found[measure] = [percent(bits) if len(bits) else None for bits in members]
        return found

    def dominates(self, other: "MixturePoint") -> bool:
        """At least as many images right by every measure, and more by one."""
        pairs = list(zip(self.counts, other.counts, strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    def figures(self) -> str:
        robust = "  ".join(f"{threat} {value:.2f}" for threat, value in self.robust.items())
        return f"{NATURAL} {self.natural:.2f}  {robust}"

    def record(self) -> dict[str, Any]:
        """In JSON types; the verdicts are not among them."""
        bounds = {name: interval(verdicts) for name, verdicts in self.verdicts.items()}
        return {
            "weights": dict(self.weights),
            "modules": {name: dict(weights) for name, weights in self.modules.items()},
            NATURAL: self.natural,
            "robust": self.robust,
            MEAN: self.mean,
            UNION: self.union,
            "interval_95": bounds,
            "on_front": self.on_front,
            "endpoint": self.mixture.endpoint,
            "losses": dict(self.glance.losses),
        }


def measured_by(wish: str, measures: Sequence[str]) -> str:
    """The measure that a wish for natural accuracy or for a norm is about: the first threat of that norm."""
    found = next((name for name in measures if name == wish or name.startswith(f"{wish}:")), None)
    if found is None:
        raise UserError(f"no threat of the norm {wish} was evaluated; there are {', '.join(measures[1:])}")
    return found


def simplest_first(point: MixturePoint, modules: Sequence[str] = ()) -> tuple[Any, ...]:
    """How points with the same figures are ordered: fewer endpoints and modules, then nearer to the base."""
    mixture = point.mixture
    return len(mixture.involved), len(mixture.modules), mixture.away_from_base(modules), str(mixture)


def marked(points: Sequence[MixturePoint], modules: Sequence[str] = ()) -> list[MixturePoint]:
    """The points with `on_front` set: no other dominates them, and of equals only the simplest counts."""
    seen: dict[tuple[int, ...], MixturePoint] = {}
    for point in sorted(points, key=lambda point: simplest_first(point, modules)):
        seen.setdefault(point.counts, point)
    kept = [point for point in seen.values() if not any(other.dominates(point) for other in seen.values())]
    return [replace(point, on_front=any(point is other for other in kept)) for point in points]


@dataclass(frozen=True)
class Wish:
    """Which point is wanted: the least that some measures must be, in percent, and which one is to be the largest."""

    at_least: Mapping[str, float] = field(default_factory=dict)
    maximise: str = "mean"

    def check(self, threats: Sequence[str]) -> None:
        """Refuse what cannot be measured under these threats."""
        for wish, least in self.at_least.items():
            if not 0 <= least <= 100:
                raise UserError(f"{wish} at least {least:g}: accuracies are percentages, from 0 to 100")
        for wish in (*self.at_least, self.maximise):
            if wish not in WISHES:
                raise unknown("measure", wish, WISHES)
            if wish not in ("mean", "union"):
                measured_by(wish, [NATURAL, *threats])

    def shortfall(self, point: MixturePoint) -> float:
        """How many points of accuracy are missing, over all measures."""
        return sum(max(0.0, least - point.value(wish)) for wish, least in self.at_least.items())

    def __str__(self) -> str:
        least = [f"{wish} ≥ {value:g}" for wish, value in self.at_least.items()]
        names = {"mean": MEAN, "union": UNION}
        return ", ".join([*least, f"most {names.get(self.maximise, self.maximise)}"])


def choose(points: Sequence[MixturePoint], wish: Wish, modules: Sequence[str] = ()) -> MixturePoint:
    """The point that meets the wish best, never one that an endpoint dominates.

    An endpoint that dominates a point meets all that the point meets, so leaving such points out loses nothing. Of
    points that are equal by the wish the one with most images right over all measures is taken, then the simplest.
    """
    wish.check([name for name in points[0].verdicts if name != NATURAL])
    ends = [point for point in points if point.is_endpoint]
    open_to_choice = [point for point in points if not any(end.dominates(point) for end in ends)]

    def order(point: MixturePoint) -> tuple[Any, ...]:
        return -point.value(wish.maximise), -sum(point.counts), *simplest_first(point, modules)

    enough = [point for point in open_to_choice if wish.shortfall(point) == 0]
    if enough:
        return replace(min(enough, key=order), chosen_by=str(wish))
    nearest = min(open_to_choice, key=lambda point: (wish.shortfall(point), *order(point)))
    asked = ", ".join(f"{name} ≥ {least:g}" for name, least in wish.at_least.items())
    raise UserError(f"no mixture reaches {asked}; the nearest is {nearest.mixture}: {nearest.figures()}")


@dataclass(frozen=True)
class Barrier:
    """A mixture of two endpoints whose accuracy lies below the straight line between theirs; all in percent.

    Their BatchNorm statistics are measured in the same way.
    `margin` is half the 95 % interval of the distance, over the choice of images, paired image by image.
    """

    between: tuple[str, str]
    mixture: MergeWeights
    measure: str
    value: float
    line: float
    margin: float

    def __str__(self) -> str:
        a, b = self.between
        return (
            f"barrier between {a} and {b}: {self.mixture} has {self.measure} {self.value:.2f},"
            f" {self.line - self.value:.1f} ± {self.margin:.1f} points below the line between them ({self.line:.2f},"
            f" BatchNorm measured alike)"
        )

    def record(self) -> dict[str, Any]:
        return {
            "between": list(self.between),
            "weights": dict(self.mixture.each),
            "measure": self.measure,
            "value": self.value,
            "line": round(self.line, 2),
            "margin_95": round(self.margin, 2),
        }


def barriers(points: Sequence[MixturePoint], remeasured: Callable[[MixturePoint], MixturePoint]) -> list[Barrier]:
    """The deepest barrier on each way between two endpoints, if there is one.

    Mixtures have fresh BatchNorm statistics, which alone may cost some points. So where something dips below the line
    between the endpoints as they are, those are looked at `remeasured` as well, and must be above it too.
    """
    ends = {point.mixture.endpoint: point for point in points if point.is_endpoint}
    found = []
    for a, b in combinations([name for name in ends if name is not None], 2):
        way = [point for point in points if _between(point.mixture, a, b)]
        if any(_dips(point, ends[a], ends[b], (a, b)) for point in way):
            start, end = remeasured(ends[a]), remeasured(ends[b])
            dips = [dip for point in way for dip in _dips(point, start, end, (a, b))]
            found += [max(dips, key=lambda dip: dip.line - dip.value)] if dips else []
    return found


def _between(mixture: MergeWeights, a: str, b: str) -> bool:
    inside = mixture.each[a] > 0 and mixture.each[b] > 0
    return inside and not mixture.modules and mixture.involved == [name for name in mixture.each if name in (a, b)]


def _dips(point: MixturePoint, start: MixturePoint, end: MixturePoint, names: tuple[str, str]) -> list[Barrier]:
    share, found = point.weights[names[1]], []
    for measure, verdicts in point.verdicts.items():
        line = (1 - share) * start.verdicts[measure].double() + share * end.verdicts[measure].double()
        below = 100 * (line - verdicts.double())
        margin = Z * float(below.std()) / len(below) ** 0.5 if len(below) > 1 else 100.0
        if float(below.mean()) > max(BARRIER_POINTS, margin):
            value = percent(verdicts)
            found.append(Barrier(names, point.mixture, measure, value, 100 * float(line.mean()), margin))
    return found


def gaps(front: Sequence[MixturePoint]) -> list[float]:
    """How much room there is around each point of a front: the distances to its neighbours, over all measures.

    The crowding distance of NSGA-II; a point at an end counts its only neighbour twice.
    """
    room = [0.0] * len(front)
    for measure in range(len(front[0].counts)):
        order = sorted(range(len(front)), key=lambda index: front[index].counts[measure])
        values = [front[index].counts[measure] for index in order]
        span = max(1, values[-1] - values[0])
        for place, index in enumerate(order):
            before = values[place] - values[place - 1] if place > 0 else None
            after = values[place + 1] - values[place] if place + 1 < len(order) else None
            sides = [side for side in (before, after) if side is not None]
            room[index] += 2 * sum(sides) / max(1, len(sides)) / span
    return room
