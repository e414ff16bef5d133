"""Weights per module: a local search around the front, one evaluated point at a time.

Each step takes the front point with most room around it, moves the share of one endpoint in one module, and lets the
dial evaluate the result. What was tried and what it gave decide the next step, and nothing else does, so a search that
was interrupted goes the same way again. Nothing that was found is forgotten: the front never gets worse.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import torch

from generalist.core.rng import generator
from generalist.evaluation import MixturePoint
from generalist.evaluation.tradeoff import gaps, marked
from generalist.mixing import MergeWeights

FIRST_STEP = 0.5
HALVINGS = 3
"""The step is ½ in the first third of the search, then ¼, then ⅛."""

Move = tuple[str, str, int]
"""A module, an endpoint other than the base, and the sign of the change of its share."""


class ModuleSearch:
    """Proposes mixtures with weights per module; `observe` tells it what came of each.

    Args:
        points: What is known already, from mixtures that treat all modules alike.
        movable: The modules, each with the endpoints that differ from the base in it.
        beyond: The largest sum of the shares of endpoints other than the base.
        steps: How many proposals there will be.
        seed: Of the order in which moves are tried.
    """

    def __init__(
        self,
        points: Sequence[MixturePoint],
        movable: Mapping[str, Sequence[str]],
        *,
        beyond: Fraction,
        steps: int,
        seed: int,
    ) -> None:
        self._points, self._modules, self._beyond, self._steps = list(points), list(movable), float(beyond), steps
        self._known = {point.mixture.key(self._modules) for point in points}
        self._uses: dict[tuple[tuple[float, ...], ...], int] = {}
        moves: list[Move] = [(m, endpoint, s) for m, differ in movable.items() for endpoint in differ for s in (1, -1)]
        order = torch.randperm(len(moves), generator=generator(seed, "dial", "moves")).tolist()
        self._moves = [moves[index] for index in order]
        self._tries, self._hits = dict.fromkeys(moves, 0), dict.fromkeys(moves, 0)

    def proposals(self) -> Iterator[MergeWeights]:
        """Up to `steps` mixtures that are not known yet; each must be observed before the next is asked for."""
        for number in range(self._steps):
            found = self._propose(FIRST_STEP / 2 ** (HALVINGS * number // self._steps))
            if found is None:
                return
            parent, move, child = found
            self._parent, self._move = parent, move
            yield child

    def observe(self, point: MixturePoint) -> None:
        """What the last proposal gave."""
        self._points.append(point)
        self._known.add(point.mixture.key(self._modules))
        key = self._parent.mixture.key(self._modules)
        self._uses[key] = self._uses.get(key, 0) + 1
        self._tries[self._move] += 1
        self._hits[self._move] += marked(self._points, self._modules)[-1].on_front

    def _propose(self, step: float) -> tuple[MixturePoint, Move, MergeWeights] | None:
        front = [point for point in marked(self._points, self._modules) if point.on_front]
        room = gaps(front)
        order = sorted(range(len(front)), key=lambda index: -(room[index] + 1e-9) / (1 + self._used(front[index])))
        moves = sorted(self._moves, key=lambda move: -(self._hits[move] + 1) / (self._tries[move] + 2))
        for parent in (front[index] for index in order):
            for move in moves:
                child = self._moved(parent.mixture, move, step)
                if child is not None and child.key(self._modules) not in self._known:
                    return parent, move, child
        return None

    def _used(self, point: MixturePoint) -> int:
        return self._uses.get(point.mixture.key(self._modules), 0)

    def _moved(self, mixture: MergeWeights, move: Move, step: float) -> MergeWeights | None:
        """The mixture with one share changed, kept at 0 or more and within `beyond`; None where nothing changes."""
        module, endpoint, sign = move
        base, *others = mixture.each
        shares = {name: mixture.of(module)[name] for name in others}
        most = self._beyond - sum(share for name, share in shares.items() if name != endpoint)
        changed = round(min(max(0.0, shares[endpoint] + sign * step), most), 9)
        if abs(changed - shares[endpoint]) < 1e-6:
            return None
        shares[endpoint] = changed
        row = {base: 1 - sum(shares.values()), **shares}
        return MergeWeights(mixture.each, {**mixture.modules, module: row})
