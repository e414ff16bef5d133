"""FAB, the fast adaptive boundary attack (Croce and Hein 2020), towards the runner-up classes one after the other.

FAB looks for the nearest misclassified point, whatever the radius. `fab_t` only asks whether it is inside the ball and
stops working on an image once it is; `fab_distance` gives the distance itself.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import margin, targeted_margin
from generalist.attacks.hyperplane import toward_hyperplane
from generalist.attacks.progress import track
from generalist.attacks.survivors import Copies, Survivors, tries
from generalist.attacks.view import attack_view, loss_and_gradient, misclassified
from generalist.core.errors import UserError
from generalist.core.rng import Source, per_image
from generalist.core.threat import Threat, expand_like
from generalist.core.types import Count, PositiveFloat, Steps, Unit

SEARCH_STEPS = 3  # of the final search, as in the paper
SEARCH_OVERSHOOT = 0.05  # a point on the boundary itself is a tie, which misleads nobody


def fab_t(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: Steps = 100,
    targets: Count = 9,
    restarts: Steps = 1,
    alpha_max: Unit = 0.1,
    eta: PositiveFloat = 1.05,
    beta: Unit = 0.9,
    generator: Source | None = None,
) -> Tensor:
    """x' misclassified inside the ball where FAB finds one, the image itself elsewhere: [B, ...] → [B, ...].

    `alpha_max` bounds the pull towards the image, `eta` is the overshoot over the linearised boundary, `beta` the
    backward step from a misclassified point. The first start is the image, those of further `restarts` are random.
    """
    survivors = Survivors(model, x.detach(), y)
    survivors.drop(x.detach(), torch.ones_like(y, dtype=torch.bool))

    def rounds(runs: int) -> Rounds:
        for together, group in tries(survivors, runs):
            yield together, group.rows, group.number, partial(_settle_inside, group, threat.radius)

    walk = _Walk(threat, steps, alpha_max, eta, beta)
    _every_target(model, x.detach(), y, rounds, walk, targets=targets, restarts=restarts, generator=generator)
    return survivors.x_adv


def fab_distance(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: Steps = 100,
    targets: Count = 9,
    restarts: Steps = 1,
    alpha_max: Unit = 0.1,
    eta: PositiveFloat = 1.05,
    beta: Unit = 0.9,
    generator: Source | None = None,
) -> tuple[Tensor, Tensor]:
    """The nearest misclassified x' found, and its distance [B]: 0 where the image is, inf where none was found.

    The norm is the threat's; its radius only says how far off further `restarts` begin.
    """
    nearest = _Nearest(model, x.detach(), y)

    def rounds(runs: int) -> Rounds:
        for run in track(range(runs)):
            yield range(run, run + 1), nearest.rows, torch.zeros_like(nearest.rows), nearest.judge

    walk = _Walk(threat, steps, alpha_max, eta, beta)
    _every_target(model, x.detach(), y, rounds, walk, targets=targets, restarts=restarts, generator=generator)
    return nearest.x_adv, nearest.distance


Judge = Callable[[Tensor, Tensor, Tensor], Tensor | None]
"""(points, their distances, who is suspected to be misclassified) → which of the rows stay, or None where all do"""

Rounds = Iterator[tuple[range, Tensor, Tensor, Judge]]
"""Runs to make together, the rows of the batch that are in them, which of the runs each is in, and who judges them"""


def _settle_inside(group: Copies, radius: float, points: Tensor, distance: Tensor, suspected: Tensor) -> Tensor | None:
    """A misclassified point inside the ball settles an image."""
    return group.drop(points, suspected & (distance <= radius))


class _Nearest:
    """Nothing settles an image; the nearest misclassified point is kept."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        wrong = misclassified(model, x, y)
        self._model, self._y = model, y
        self.x_adv = x.clone()
        self.distance = torch.where(wrong, 0.0, torch.full_like(wrong, float("inf"), dtype=x.dtype))
        self.rows = (~wrong).nonzero()[:, 0]

    def judge(self, points: Tensor, distance: Tensor, suspected: Tensor) -> Tensor | None:
        nearer = (suspected & (distance < self.distance[self.rows])).nonzero()[:, 0]
        if len(nearer):
            nearer = nearer[misclassified(self._model, points[nearer], self._y[self.rows[nearer]])]
            self.x_adv[self.rows[nearer]] = points[nearer]
            self.distance[self.rows[nearer]] = distance[nearer]
        return None


class _Walk(NamedTuple):
    """How one walk along a boundary goes."""

    threat: Threat
    steps: int
    alpha_max: float
    eta: float
    beta: float


def _every_target(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rounds: Callable[[int], Rounds],
    walk: _Walk,
    *,
    targets: int,
    restarts: int,
    generator: Source | None,
) -> None:
    """A walk towards every runner-up class, from each start, for every image that is left by then."""
    if min(walk.steps, targets, restarts) < 1:
        raise UserError(f"fab needs steps, targets and restarts of at least 1, got {walk.steps}, {targets}, {restarts}")
    streams = per_image(generator, x, "fab")
    # Where a linearised difference of logits is zero cannot be told in half precision.
    with attack_view(model) as view, torch.autocast(x.device.type, enabled=False):
        with torch.no_grad():
            logits = view(x)
        ranked = logits.scatter(1, y[:, None], float("-inf")).argsort(dim=1, descending=True, stable=True)
        goals = ranked[:, : min(targets, logits.shape[1] - 1)]
        for runs, rows, number, judge in rounds(goals.shape[1] * restarts):
            # drawn for the whole batch, so that no stream depends on which images are left
            starts = [x + 0.5 * (walk.threat.random_start(x, streams) - x) if run % restarts else x for run in runs]
            if not len(rows):
                return
            target = goals[rows, (runs.start + number) // restarts]
            _go(view, x[rows], y[rows], target, torch.stack(starts)[number, rows], judge, walk)


def _go(view: nn.Module, x: Tensor, y: Tensor, target: Tensor, point: Tensor, judge: Judge, walk: _Walk) -> None:
    """Along the boundary between the label and the target, back from it where it is crossed; then the final search."""
    best, nearest = point, torch.full_like(y, float("inf"), dtype=x.dtype)
    for _ in track(range(walk.steps)):
        _, lead, gradient = loss_and_gradient(view, point, y, targeted_margin(target))
        point = _step(point, x, lead.to(x), gradient, walk)
        distance, wrong = walk.threat.size(point - x), _misled(_margin(view, point, y))
        nearer = wrong & (distance < nearest)
        best, nearest = torch.where(expand_like(nearer, x), point, best), torch.where(nearer, distance, nearest)
        keep = judge(point, distance, wrong)
        point = torch.where(expand_like(wrong, x), x + walk.beta * (point - x), point)
        if keep is not None:
            x, y, target, point, best, nearest = (part[keep] for part in (x, y, target, point, best, nearest))
            if not len(x):
                return
    _final_search(view, x, y, best, judge, walk.threat)


def _final_search(view: nn.Module, x: Tensor, y: Tensor, best: Tensor, judge: Judge, threat: Threat) -> None:
    """Back along the line from the best point to the image, to where the secant of the margin is zero."""
    low, high = (torch.full_like(y, end, dtype=x.dtype) for end in (0, 1))
    below, above = _margin(view, x, y), _margin(view, best, y)
    for _ in range(SEARCH_STEPS):
        zero = low + (high - low) * (below / (below - above)).nan_to_num(1, 1, 1).clamp(0, 1)
        at = zero + SEARCH_OVERSHOOT * (high - zero)
        point = x + expand_like(at, x) * (best - x)
        value = _margin(view, point, y)
        wrong = _misled(value)
        low, below = torch.where(wrong, low, at), torch.where(wrong, below, value)
        high, above = torch.where(wrong, at, high), torch.where(wrong, value, above)
        keep = judge(point, threat.size(point - x), wrong)
        if keep is not None:
            state = (x, y, best, low, high, below, above)
            x, y, best, low, high, below, above = (part[keep] for part in state)
            if not len(x):
                return


def _step(point: Tensor, x: Tensor, lead: Tensor, gradient: Tensor, walk: _Walk) -> Tensor:
    """Past the linearised boundary from the point, drawn a little to where the image itself would cross it."""
    lead, gradient = lead.nan_to_num(0, 0, 0), gradient.nan_to_num(0, 0, 0).flatten(1)
    current, origin = point.flatten(1), x.flatten(1)
    gaps = torch.stack([-lead, (gradient * (current - origin)).sum(1) - lead])
    from_point, from_image = toward_hyperplane(torch.stack([current, origin]), gradient, gaps, walk.threat.norm)
    here, there = (walk.threat.size(part).clamp_min(1e-8) for part in (from_point, from_image))
    alpha = (here / (here + there)).clamp_max(walk.alpha_max)[:, None]
    mixed = (1 - alpha) * (current + walk.eta * from_point) + alpha * (origin + walk.eta * from_image)
    return mixed.clamp_(0, 1).view_as(x)


@torch.no_grad()
def _margin(view: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return margin(view(x), y).to(x)


def _misled(margins: Tensor) -> Tensor:
    """A tie or NaN counts: the judge asks the model itself."""
    return ~(margins < 0)
