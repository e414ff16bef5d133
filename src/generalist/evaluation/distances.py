"""The smallest distance at which each image is known to be misclassified, and its file.

FMN and targeted FAB look for the nearest misclassified point. APGD-CE and APGD-T then attack inside balls,
on a ladder of radii from the distance so far downwards until they fail, and at the threat's radius as `quick` does.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from generalist.attacks import STANDARD, fab_distance, fmn_distance, misclassified, stage_streams, watched
from generalist.core.errors import RunError
from generalist.core.names import CURVE
from generalist.core.threat import Threat, expand_like
from generalist.evaluation.attacked import BALL_TOLERANCE
from generalist.evaluation.verdicts import ImageRows

VERSION = 3
"""Raised whenever a search changes what it finds: older distances are then not used."""
REACH = 4
"""The ladder, and with it the curve, ends at this many radii of the threat."""
RUNGS_PER_OCTAVE, LOWEST = 16, 5  # the ladder begins LOWEST octaves below the threat's radius
LINE_STEPS = 6  # of the bisection between a misclassified point and the image
LADDER, NATURAL, RECORD = "apgd", "natural", "record"
_NEAREST = {"fmn": partial(fmn_distance, steps=100), "fab": partial(fab_distance, steps=20)}
_SHARES = {"fmn": 0.1, "fab": 0.3, LADDER: 0.6}  # of the time, about

Found = tuple[float, str]
"""A distance, and what found it: an attack, `natural` (wrong unattacked) or `record` (another evaluation)."""


class DistanceStore:
    """Distances on disk by a key and the name of the image; an interrupted evaluation goes on where it stopped."""

    def __init__(self, folder: Path | None, key: str) -> None:
        self._rows = ImageRows(folder, CURVE, key)

    def read(self) -> dict[str, Found]:
        return {name: (math.inf if d is None else d, attack) for name, (d, attack) in self._rows.read().items()}

    def write(self, rows: Mapping[str, Found]) -> None:
        self._rows.write({name: (None if math.isinf(d) else d, attack) for name, (d, attack) in rows.items()})


@dataclass
class _Search:
    """The nearest misclassified point of each image so far."""

    model: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat
    seed: int
    distance: Tensor  # float64
    found_by: list[str]

    def offer(self, rows: Tensor, points: Tensor, attack: str, *, radius: float = math.inf) -> Tensor:
        """Keep the points that are misclassified and nearer; which of them are misclassified [len(rows)].

        A point that an attack says to be in a ball is as near as its radius, but for the rounding of the projection.
        """
        wrong = misclassified(self.model, points, self.y[rows])
        size = self.threat.size(points - self.x[rows]).double()
        inside = (size <= radius * (1 + BALL_TOLERANCE)) & ((points >= 0) & (points <= 1)).flatten(1).all(1)
        if not inside[wrong].all():  # NaN is in no ball
            raise RunError(f"{attack} left the ball or the box; its distances would be worthless")
        size = size.clamp_max(radius)
        nearer = wrong & (size < self.distance[rows])
        self.distance[rows[nearer]] = size[nearer]
        for row in rows[nearer].tolist():
            self.found_by[row] = attack
        return wrong


def find_distances(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    seed: int,
    caps: Sequence[float],
    tell: Callable[[float], None],
) -> list[Found]:
    """The distance of each image and what found it; infinity where nothing did.

    `caps` has for each image a distance that is known already, or infinity. `tell` is given the share of the work done.
    """
    wrong = misclassified(model, x, y)
    distance = torch.where(wrong, 0.0, torch.full_like(y, math.inf, dtype=torch.float64))
    search = _Search(model, x, y, threat, seed, distance, [NATURAL if bad else "" for bad in wrong.tolist()])
    rows = (~wrong).nonzero()[:, 0]
    begin = 0.0
    for name, attack in _NEAREST.items() if len(rows) else ():
        streams = stage_streams(seed, name, threat, x[rows])
        with watched(lambda part, begin=begin, name=name: tell(begin + _SHARES[name] * part)):  # type: ignore[misc]
            points, _ = attack(model, x[rows], y[rows], threat=threat, generator=streams)
        search.offer(rows, points, name)
        begin += _SHARES[name]
    for row, cap in enumerate(caps):
        if cap < distance[row]:
            distance[row], search.found_by[row] = cap, RECORD
    for settled in _descend(search, rows):
        tell(begin + _SHARES[LADDER] * settled)
    tell(1.0)
    return list(zip(search.distance.tolist(), search.found_by, strict=True))


def ladder(eps: Fraction) -> list[Fraction]:
    """Radii from eps / 2^LOWEST to REACH · eps, RUNGS_PER_OCTAVE from one to its double, evenly between them."""
    octaves = [eps * Fraction(2) ** power for power in range(-LOWEST, REACH.bit_length())]
    steps = range(RUNGS_PER_OCTAVE)
    inner = [low + (high - low) * Fraction(i, RUNGS_PER_OCTAVE) for low, high in pairwise(octaves) for i in steps]
    return [*inner, octaves[-1]]


def _descend(search: _Search, rows: Tensor) -> Iterator[float]:
    """Attack each image at the largest rung below its distance, until that fails; yields the share that is settled.

    At the threat's own radius whoever seems to be farther off is attacked once more: an attack may fail in a large ball
    and succeed in a smaller one, and here the curve must not be above `quick`.
    """
    left = rows
    for rung in reversed(ladder(search.threat.eps)):
        ball = Threat(search.threat.norm, rung)
        asked = rows if rung == search.threat.eps else left
        group = asked[search.distance[asked] > ball.radius]
        nearer = left[search.distance[left] <= ball.radius]
        left = torch.cat([nearer, group[_broken(search, group, ball)]])
        yield 1 - len(left) / max(1, len(rows))


def _broken(search: _Search, rows: Tensor, ball: Threat) -> Tensor:
    """Which images APGD-CE and APGD-T break in the ball, as in the suite `quick`; their points are pulled back."""
    result = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for label in ("APGD_ce", "APGD_t"):
        here = (~result).nonzero()[:, 0]
        if len(here):
            x, y = search.x[rows[here]], search.y[rows[here]]
            streams = stage_streams(search.seed, label, ball, x)
            points = STANDARD[label][1](search.model, x, y, threat=ball, generator=streams)
            wrong = search.offer(rows[here], points, LADDER, radius=ball.radius)
            result[here[wrong]] = True
            if wrong.any():
                _pull_back(search, rows[here[wrong]], points[wrong])
    return result


def _pull_back(search: _Search, rows: Tensor, points: Tensor) -> None:
    """Bisect the line from the misclassified points to their images."""
    x = search.x[rows]
    low, high = torch.zeros(len(rows), device=x.device), torch.ones(len(rows), device=x.device)
    for _ in range(LINE_STEPS):
        at = (low + high) / 2
        wrong = search.offer(rows, (x + expand_like(at, x) * (points - x)).clamp(0, 1), LADDER)
        low, high = torch.where(wrong, low, at), torch.where(wrong, at, high)
