"""Which ranks train which learner, and when: pure functions of the plan, the costs and the number of ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from generalist.mixing import MixPlan

Ranks = tuple[int, ...]
PACKED_BEST = 12
"""Up to so many learners are packed optimally; the time for that grows exponentially with their number."""


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs in which the same learners are active. The first of a learner's `ranks` sends its state."""

    first_epoch: int
    epochs: int
    ranks: Mapping[str, Ranks]
    costs: Mapping[str, float]

    @cached_property
    def load(self) -> float:
        """The cost of a step on the rank that has most to do."""
        return max(self._loads().values(), default=0.0)

    def _loads(self) -> dict[int, float]:
        loads: dict[int, float] = {}
        for name, ranks in self.ranks.items():
            for rank in ranks:
                loads[rank] = loads.get(rank, 0.0) + self.costs.get(name, 0.0) / len(ranks)
        return loads


def phases(plan: MixPlan, costs: Mapping[str, float], *, ranks: int, batch_size: int) -> list[Phase]:
    """The active learners, placed anew whenever they change; idle ones stay with rank 0, where they cost nothing."""

    def active(epoch: int) -> tuple[str, ...]:
        return tuple(name for name in plan.gammas if plan.is_active_in_epoch(name, epoch))

    found, epoch = [], 0
    for names, stretch in groupby(range(plan.epochs), key=active):
        length = len(list(stretch))
        busy = {name: costs[name] for name in names}
        placed = place(busy, ranks=ranks, most=batch_size)
        found.append(Phase(epoch, length, {name: placed.get(name, (0,)) for name in plan.gammas}, busy))
        epoch += length
    return found


def place(costs: Mapping[str, float], *, ranks: int, most: int) -> dict[str, Ranks]:
    """Fewer ranks than learners: packed so that the busiest has least. More: dealt out in proportion to cost.

    No learner gets more than `most` ranks: there is no smaller part of a batch than one image.
    """
    names = sorted(costs, key=lambda name: -costs[name])
    if not names:
        return {}
    if ranks <= len(names) and len(names) > PACKED_BEST:
        return _packed_in_turn(costs, names, ranks)
    if ranks <= len(names):
        return {name: (rank,) for name, rank in zip(names, _packed([costs[n] for n in names], ranks), strict=True)}
    counts = dict.fromkeys(names, 1)
    for _ in range(ranks - len(names)):
        eligible = [name for name in names if counts[name] < most]
        if eligible:
            counts[max(eligible, key=lambda name: costs[name] / counts[name])] += 1
    placed, first = {}, 0
    for name in names:
        placed[name] = tuple(range(first, first + counts[name]))
        first += counts[name]
    return placed


def _packed_in_turn(costs: Mapping[str, float], names: list[str], ranks: int) -> dict[str, Ranks]:
    """The costliest first, each to the rank that has least: at most a third above the best."""
    loads, placed = [0.0] * ranks, dict[str, Ranks]()
    for name in names:
        rank = min(range(ranks), key=lambda r: loads[r])
        loads[rank] += costs[name]
        placed[name] = (rank,)
    return placed


def _packed(costs: list[float], ranks: int) -> list[int]:
    """The rank of each cost (falling), such that the largest sum is least: search with the usual cuts."""
    best: tuple[float, list[int]] = (float("inf"), [])

    def search(index: int, loads: list[float], chosen: list[int]) -> None:
        nonlocal best
        if max(loads) >= best[0]:
            return
        if index == len(costs):
            best = (max(loads), list(chosen))
            return
        seen = set()
        for rank in sorted(range(ranks), key=lambda r: loads[r]):
            if loads[rank] not in seen:  # ranks with the same load are interchangeable
                seen.add(loads[rank])
                loads[rank] += costs[index]
                search(index + 1, loads, [*chosen, rank])
                loads[rank] -= costs[index]

    search(0, [0.0] * ranks, [])
    return best[1]


def speed_up(stretches: list[Phase]) -> float:
    """Of all phases over one rank that does everything, by the passes alone."""
    serial = sum(sum(phase.costs.values()) * phase.epochs for phase in stretches)
    shared = sum(phase.load * phase.epochs for phase in stretches)
    return serial / shared if shared else 1.0
