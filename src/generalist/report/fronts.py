"""Fronts side by side: at fixed natural accuracies, against the best of some baselines, by hypervolume, over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from generalist.core.errors import UserError, unknown
from generalist.evaluation.accuracy import Change, paired_change
from generalist.evaluation.fronts import (
    Dominated,
    Front,
    FrontPoint,
    Pair,
    Spread,
    common_levels,
    dominated_points,
    spread,
)

BEST = "best of the baselines"


@dataclass(frozen=True)
class FrontRow:
    """What a comparison says of one front, over its seeds; None where the front does not reach a natural accuracy."""

    name: str
    seeds: int
    points: int
    kept: int
    robust: tuple[Spread | None, ...]
    gaps: tuple[Spread | None, ...]
    margins: tuple[float | None, ...]
    """Of the gaps, over the choice of images; where there is one seed in all."""
    hypervolume: Spread | None
    dominated: int = 0
    clearly: int = 0
    cost: Spread | None = None
    chosen_by: tuple[str, ...] = ()
    is_baseline: bool = False


@dataclass(frozen=True, eq=False)
class FrontComparison:
    """Fronts of the same images under the same attack, with their seeds. `generalist.fronts` makes it.

    `levels` are the natural accuracies that they are compared at, `baselines` those whose best the others are measured
    against, `reference` the point that hypervolumes begin at. `rows` sums it up, `dominated` has the points that
    another one beats, `record()` is all of it as JSON, and `print` shows a table.
    """

    fronts: tuple[Front, ...]
    levels: tuple[float, ...]
    baselines: tuple[str, ...] = ()
    reference: Pair = (0.0, 0.0)
    data: str = ""
    split: str = "test"
    suite: str = ""
    threat: str = ""
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(front.name for front in self.fronts))

    @property
    def seeds(self) -> list[int]:
        return sorted({front.seed for front in self.fronts})

    @property
    def images(self) -> int:
        return len(self.fronts[0].points[0].natural_right)

    def of(self, name: str) -> list[Front]:
        """The fronts of that name, one per seed."""
        return [front for front in self.fronts if front.name == name]

    def best_verdicts(self, seed: int, natural: float) -> Tensor | None:
        """[N]: of the baselines' fronts, and of the one front of all their points, the one that is highest there.

        Both count: the front of all points may pass below a straight line of one of them.
        """
        rivals = [front for front in self.fronts if front.seed == seed and front.name in self.baselines]
        every = [front for front in _reaching(rivals, self.baselines) if front.name == BEST]
        found = [row for front in (*rivals, *every) if (row := front.verdicts_at(natural)) is not None]
        return max(found, key=lambda row: float(row.mean())) if found else None

    def gap(self, front: Front, natural: float) -> Change | None:
        """Above the best of the baselines, with the margin over the choice of images; None where one does not reach.

        The natural accuracies are taken as they were measured.
        """
        ours, best = front.verdicts_at(natural), self.best_verdicts(front.seed, natural)
        return None if ours is None or best is None else paired_change(ours, best)

    @cached_property
    def dominated(self) -> list[Dominated]:
        """Points that another one of the same seed dominates."""
        return dominated_points(self.fronts)

    @cached_property
    def rows(self) -> list[FrontRow]:
        rows = [self._row(name) for name in self.names]
        return [*rows, self._best_row()] if len(self.baselines) > 1 else rows

    def _row(self, name: str) -> FrontRow:
        fronts = self.of(name)
        gaps = [[self.gap(front, level) for front in fronts] for level in self.levels] if self.baselines else []
        beaten = [one for one in self.dominated if one.front.name == name and not one.within]
        rules = dict.fromkeys(point.chosen_by for front in fronts for point in front.points)
        return FrontRow(
            name=name,
            seeds=len(fronts),
            points=sum(len(front.points) for front in fronts),
            kept=sum(len(front.kept) for front in fronts),
            robust=tuple(spread([front.robust_at(level) for front in fronts]) for level in self.levels),
            gaps=tuple(spread([None if one is None else one.points for one in row]) for row in gaps),
            margins=tuple(row[0].margin if len(self.seeds) == 1 and row[0] is not None else None for row in gaps),
            hypervolume=spread([front.hypervolume(self.reference) for front in fronts]),
            dominated=len(beaten),
            clearly=sum(one.clear for one in beaten),
            cost=spread([front.cost for front in fronts]),
            chosen_by=tuple(rule for rule in rules if rule),
            is_baseline=name in self.baselines,
        )

    def _best_row(self) -> FrontRow:
        """Without what it makes no sense to say of several fronts."""
        found = [[self.best_verdicts(seed, level) for seed in self.seeds] for level in self.levels]
        robust = [spread([None if v is None else 100 * float(v.mean()) for v in row]) for row in found]
        none = (None,) * len(self.levels)
        seeds = {front.seed for front in self.fronts if front.name in self.baselines}
        return FrontRow(BEST, len(seeds), 0, 0, tuple(robust), none, none, None)

    def record(self) -> dict[str, Any]:
        """Everything but the verdicts, in JSON types."""
        beaten = {one.point: one for one in self.dominated}
        return {
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "suite": self.suite,
            "threat": self.threat,
            "seeds": self.seeds,
            "natural_accuracies": list(self.levels),
            "baselines": list(self.baselines),
            "hypervolume_reference": list(self.reference),
            "fronts": [_row_record(row, self.levels) for row in self.rows],
            "per_seed": [self._front_record(front, beaten) for front in self.fronts],
            "notes": list(self.notes),
        }

    def _front_record(self, front: Front, beaten: Mapping[FrontPoint, Dominated]) -> dict[str, Any]:
        gaps = {f"{level:g}": self.gap(front, level) for level in self.levels} if self.baselines else {}
        values = {f"{level:g}": front.robust_at(level) for level in self.levels}
        return {
            "front": front.name,
            "seed": front.seed,
            "robust_at": {level: None if value is None else round(value, 3) for level, value in values.items()},
            "gap_to_best_baseline": {level: None if gap is None else gap.record() for level, gap in gaps.items()},
            "hypervolume": round(front.hypervolume(self.reference), 3),
            "cost_in_at": front.cost,
            "points": [
                {
                    "name": point.name,
                    "natural": round(point.pair[0], 2),
                    "robust": round(point.pair[1], 2),
                    "on_front": any(point is kept for kept in front.kept),
                    "chosen_by": point.chosen_by,
                    "source": point.source,
                    "cost_in_at": point.cost,
                    "seconds": point.seconds,
                    "dominated": beaten[point].record() if point in beaten else None,
                }
                for point in front.points
            ],
        }

    def __str__(self) -> str:
        from generalist.report.front_layouts import plain_text  # which lays out comparisons, and so imports this file

        return plain_text(self)


def _row_record(row: FrontRow, levels: Sequence[float]) -> dict[str, Any]:
    def by_level(spreads: Sequence[Spread | None]) -> dict[str, Any]:
        return {
            f"{level:g}": None if spread is None else spread.record()
            for level, spread in zip(levels, spreads, strict=False)
        }

    return {
        "front": row.name,
        "seeds": row.seeds,
        "points": row.points,
        "on_front": row.kept,
        "is_baseline": row.is_baseline,
        "robust_at": by_level(row.robust),
        "gap_to_best_baseline": by_level(row.gaps),
        "hypervolume": None if row.hypervolume is None else row.hypervolume.record(),
        "dominated_by_other_fronts": row.dominated,
        "clearly_dominated": row.clearly,
        "cost_in_at": None if row.cost is None else row.cost.record(),
        "chosen_by": list(row.chosen_by),
    }


def _reaching(fronts: Sequence[Front], baselines: Sequence[str]) -> list[Front]:
    """Every front, but the baselines of a seed as one."""
    found = [front for front in fronts if front.name not in baselines]
    for seed in dict.fromkeys(front.seed for front in fronts):
        points = [p for front in fronts if front.seed == seed and front.name in baselines for p in front.points]
        found += [Front(BEST, seed, tuple(points))] if points else []
    return found


def compare_fronts(
    fronts: Sequence[Front],
    *,
    at: Sequence[float] = (),
    baselines: Sequence[str] = (),
    reference: Pair = (0.0, 0.0),
    notes: Sequence[str] = (),
    **about: str,
) -> FrontComparison:
    """Fronts of the same images, in one comparison; `about` is `data`, `split`, `suite` and `threat`.

    Without `at` the fronts are compared at natural accuracies that all of them with two points or more reach, the
    baselines taken together.
    """
    if not fronts:
        raise UserError("there are no fronts to compare")
    for level in at:
        if not 0 <= level <= 100:  # so written that NaN fails too
            raise UserError(f"natural accuracies are percentages, from 0 to 100, got {level:g}")
    if len(reference) != 2 or not all(0 <= value < 100 for value in reference):
        raise UserError("the reference point is two percentages from 0 to below 100, natural and robust, such as 0,0")
    names = list(dict.fromkeys(front.name for front in fronts))
    for name in baselines:
        if name not in names:
            raise unknown("front", name, names)
    seeds = {front.seed for front in fronts}
    said = list(notes)
    levels = tuple(sorted(set(at)))
    if not levels:
        levels = common_levels([front.range for front in _reaching(fronts, baselines) if len(front.kept) > 1])
        if not levels:
            said.append("the fronts have no range of natural accuracy in common; name some to compare at (--at)")
    for name in baselines:
        lacking = sorted(seeds - {front.seed for front in fronts if front.name == name})
        if lacking:
            said.append(f"the baseline {name} has no point with seed {', '.join(map(str, lacking))}")
    return FrontComparison(
        tuple(fronts), levels, tuple(dict.fromkeys(baselines)), reference, notes=tuple(said), **about
    )
