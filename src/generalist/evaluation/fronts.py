"""Fronts of the trade-off between natural and robust accuracy: interpolated, dominated points, hypervolume.

A front is what one method offers with one seed: models, each a point (natural, robust) in percent, of the same images.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from generalist.evaluation.accuracy import Change, paired_change

Pair = tuple[float, float]
"""(natural, robust), in percent"""
LEVELS = 3
"""Natural accuracies at which fronts are compared, where none are given."""


def pareto_front(points: Sequence[Pair]) -> list[Pair]:
    """The points that no other beats in one coordinate without losing in the other, from left to right."""
    front: list[Pair] = []
    for point in sorted(set(points), reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def shares_at(front: Sequence[Pair], natural: float) -> list[tuple[int, float]]:
    """How much of which points of a front (left to right) makes the one with this natural accuracy, on straight lines.

    Nothing where the front does not reach: there is no extrapolation.
    """
    for place, (at, _) in enumerate(front):
        if at == natural:
            return [(place, 1.0)]
        if at > natural:
            if place == 0:
                return []
            before = front[place - 1][0]
            share = (natural - before) / (at - before)
            return [(place - 1, 1 - share), (place, share)]
    return []


def robust_at(points: Sequence[Pair], natural: float) -> float | None:
    """Robust accuracy at a natural one, linear along the front of the points; None where the front does not reach."""
    front = pareto_front(points)
    shares = shares_at(front, natural)
    return sum(share * front[place][1] for place, share in shares) if shares else None


def hypervolume(points: Sequence[Pair], reference: Pair = (0.0, 0.0)) -> float:
    """The area that the points dominate above and right of the reference, in percent of all that there is."""
    low, bottom = reference
    area, left = 0.0, low
    for natural, robust in pareto_front(points):
        if natural > left and robust > bottom:
            area += (natural - left) * (robust - bottom)
            left = natural
    return 100 * area / ((100 - low) * (100 - bottom))


def common_levels(ranges: Sequence[Pair]) -> tuple[float, ...]:
    """Three natural accuracies that all ranges (lowest, highest) reach, evenly spaced; none where they share nothing.

    They are rounded to a tenth where that leaves them within.
    """
    if not ranges:
        return ()
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    if low > high:
        return ()
    if low == high:
        return (low,)
    exact = [low + (high - low) * number / (LEVELS + 1) for number in range(1, LEVELS + 1)]
    rounded = [round(level, 1) for level in exact]
    fits = len(set(rounded)) == LEVELS and low <= rounded[0] and rounded[-1] <= high
    return tuple(rounded if fits else exact)


@dataclass(frozen=True, eq=False)
class FrontPoint:
    """A model with its verdicts, bool [N]: right without an attack, and right with and without."""

    name: str
    natural_right: Tensor
    robust_right: Tensor
    chosen_by: str = ""
    training: str = ""  # which training it comes from: points of one dial share it
    cost: float | None = None  # of that training, in PGD-10 AT runs
    seconds: float | None = None
    source: str = ""  # the run folder, where there is one

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Images that are right, without an attack and under it."""
        return int(self.natural_right.sum()), int(self.robust_right.sum())

    @cached_property
    def pair(self) -> Pair:
        """(natural, robust) in percent, not rounded."""
        natural, robust = self.counts
        return 100 * natural / len(self.natural_right), 100 * robust / len(self.robust_right)

    def dominates(self, other: "FrontPoint") -> bool:
        """At least as many images right in both ways, and more in one."""
        return self.counts != other.counts and all(a >= b for a, b in zip(self.counts, other.counts, strict=True))


@dataclass(frozen=True, eq=False)
class Front:
    """The points that one method (`name`) offers with one seed."""

    name: str
    seed: int
    points: tuple[FrontPoint, ...]

    @cached_property
    def kept(self) -> list[FrontPoint]:
        """The points that no other of this front dominates, from least to most natural; of equals the first."""
        first = {point.pair: point for point in reversed(self.points)}
        return [first[pair] for pair in pareto_front(list(first))]

    @property
    def range(self) -> Pair:
        """The least and the largest natural accuracy of its front."""
        return self.kept[0].pair[0], self.kept[-1].pair[0]

    def robust_at(self, natural: float) -> float | None:
        return robust_at([point.pair for point in self.points], natural)

    def verdicts_at(self, natural: float) -> Tensor | None:
        """[N], between 0 and 1: the robust verdicts of the two neighbours on the front, by their shares."""
        shares = shares_at([point.pair for point in self.kept], natural)
        rows = [share * self.kept[place].robust_right.double() for place, share in shares]
        return torch.stack(rows).sum(0) if rows else None

    def hypervolume(self, reference: Pair) -> float:
        return hypervolume([point.pair for point in self.points], reference)

    @property
    def cost(self) -> float | None:
        """Of all its trainings, each counted once, in PGD-10 AT runs; None where one is not known."""
        costs = {point.training or point.name: point.cost for point in self.points}
        known = [cost for cost in costs.values() if cost is not None]
        return sum(known) if len(known) == len(costs) else None


@dataclass(frozen=True)
class Spread:
    """One value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """The standard deviation over the seeds (n − 1); None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def text(self, form: str = ".1f") -> str:
        """54.3 ± 0.6"""
        digits = int(form[-2])
        mean = round(self.mean, digits) or 0.0  # there is no minus in front of nothing
        return f"{mean:{form}}" + (f" ± {self.sd:.{digits}f}" if self.sd is not None else "")

    def record(self) -> dict[str, Any]:
        sd = None if self.sd is None else round(self.sd, 3)
        return {"mean": round(self.mean, 3), "sd": sd, "seeds": len(self.values)}


def spread(values: Sequence[float | None]) -> Spread | None:
    """Of the values that there are; None where there are none."""
    known = tuple(value for value in values if value is not None)
    return Spread(known) if known else None


@dataclass(frozen=True, eq=False)
class Dominated:
    """A point and the one that dominates it by most: differences with 95 % intervals, paired image by image."""

    point: FrontPoint
    front: Front
    by: FrontPoint
    by_front: Front
    natural: Change
    robust: Change
    dominators: int

    @property
    def clear(self) -> bool:
        """Whether both differences are larger than their margins."""
        return self.natural.points > self.natural.margin and self.robust.points > self.robust.margin

    @property
    def within(self) -> bool:
        """Whether only points of its own front dominate it."""
        return self.front is self.by_front

    def record(self) -> dict[str, Any]:
        return {
            "by": self.by.name,
            "by_front": self.by_front.name,
            "natural": self.natural.record(),
            "robust": self.robust.record(),
            "clear": self.clear,
            "dominators": self.dominators,
        }


def dominated_points(fronts: Sequence[Front]) -> list[Dominated]:
    """Points that another one of the same seed dominates; the one named does so by most, if it can of another front."""
    found = []
    for seed in dict.fromkeys(front.seed for front in fronts):
        every = [(front, point) for front in fronts if front.seed == seed for point in front.points]
        for front, point in every:
            better = [(f, p) for f, p in every if p.dominates(point)]
            if better:
                others = [one for one in better if one[0] is not front] or better
                by_front, by = max(others, key=lambda one: sum(one[1].counts))
                natural = paired_change(by.natural_right, point.natural_right)
                robust = paired_change(by.robust_right, point.robust_right)
                found.append(Dominated(point, front, by, by_front, natural, robust, len(better)))
    return found
