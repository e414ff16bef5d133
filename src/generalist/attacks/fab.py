"""FAB, the fast adaptive boundary attack (Croce and Hein 2020), towards one target class after the other.

FAB looks for the nearest misclassified point, whatever the radius. `fab_t` only asks whether there is one inside the
ball and leaves an image once there is (early exit). `fab_distance` returns the distance itself.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from generalist.attacks.boundary import Judge, Nearest, final_search, margin_at, misled, settle_inside
from generalist.attacks.criteria import targeted_margin
from generalist.attacks.hyperplane import toward_hyperplane
from generalist.attacks.progress import track
from generalist.attacks.survivors import Survivors, tries
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.core.errors import UserError
from generalist.core.rng import Source, per_image
from generalist.core.threat import Threat, expand_like
from generalist.core.types import Count, PositiveFloat, Steps, Unit


def fab_t(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    targets: Count = 9,
    restarts: Steps = 1,
    alpha_max: Unit = 0.1,
    eta: PositiveFloat = 1.05,
    beta: Unit = 0.9,
    generator: Source | None = None,
) -> Tensor:
    """Targeted FAB inside a ball, the third stage of AutoAttack (Croce and Hein 2020).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps per target class and restart.
        targets: Number of target classes: those that follow the label in the logits of the clean image.
        restarts: Number of starts. The first is the image, the others are random.
        alpha_max: Upper bound of the pull towards the image, 0 to 1.
        eta: Overshoot beyond the linearised boundary; 1 would stop on it.
        beta: Share of the distance that is kept after a misclassified point (backward step), 0 to 1.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: a misclassified point of the ball where FAB finds one, elsewhere the image itself.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.fab_t(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    walk = _Walk(Threat.parse(threat), steps, alpha_max, eta, beta)
    survivors = Survivors(model, x.detach(), y)
    survivors.drop(x.detach(), torch.ones_like(y, dtype=torch.bool))

    def rounds(runs: int) -> Rounds:
        for together, group in tries(survivors, runs):
            yield together, group.rows, group.number, partial(settle_inside, group, walk.threat.radius)

    _every_target(model, x.detach(), y, rounds, walk, targets=targets, restarts=restarts, generator=generator)
    return survivors.x_adv


def fab_distance(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    targets: Count = 9,
    restarts: Steps = 1,
    alpha_max: Unit = 0.1,
    eta: PositiveFloat = 1.05,
    beta: Unit = 0.9,
    generator: Source | None = None,
) -> tuple[Tensor, Tensor]:
    """The nearest misclassified point that targeted FAB finds, and its distance (Croce and Hein 2020).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius only says how far off
            further `restarts` begin.
        steps: Number of steps per target class and restart.
        targets: Number of target classes: those that follow the label in the logits of the clean image.
        restarts: Number of starts. The first is the image, the others are random.
        alpha_max: Upper bound of the pull towards the image, 0 to 1.
        eta: Overshoot beyond the linearised boundary; 1 would stop on it.
        beta: Share of the distance that is kept after a misclassified point (backward step), 0 to 1.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        The points [B, ...] and their distances [B] in the norm of the threat. The distance is 0 where the image itself
        is misclassified, and inf where no misclassified point was found.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Identity()  # the pixels are the logits
        >>> x, y = torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([0, 0])
        >>> x_adv, distance = attacks.fab_distance(model, x, y, threat="linf:1/2")
        >>> [round(float(value), 2) for value in distance]
        [0.25, 0.0]
    """
    walk = _Walk(Threat.parse(threat), steps, alpha_max, eta, beta)
    nearest = Nearest(model, x.detach(), y)

    def rounds(runs: int) -> Rounds:
        for run in track(range(runs)):
            yield range(run, run + 1), nearest.rows, torch.zeros_like(nearest.rows), nearest.judge

    _every_target(model, x.detach(), y, rounds, walk, targets=targets, restarts=restarts, generator=generator)
    return nearest.x_adv, nearest.distance


Rounds = Iterator[tuple[range, Tensor, Tensor, Judge]]
"""Runs to make together, the row of the batch behind each point, the number of its run, and the judge of the points."""


class _Walk(NamedTuple):
    """The settings of a walk along the boundary."""

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
    """A walk towards every target class, from each start, for every image that is left by then."""
    if min(walk.steps, targets, restarts) < 1:
        raise UserError(f"fab needs steps, targets and restarts of at least 1, got {walk.steps}, {targets}, {restarts}")
    streams = per_image(generator, x, "fab")
    # Half precision is too coarse to find the zero of a linearised difference of logits.
    with attack_view(model) as view, torch.autocast(x.device.type, enabled=False):
        with torch.no_grad():
            logits = view(x)
        ranked = logits.scatter(1, y[:, None], float("-inf")).argsort(dim=1, descending=True, stable=True)
        goals = ranked[:, : min(targets, logits.shape[1] - 1)]
        for runs, rows, number, judge in rounds(goals.shape[1] * restarts):
            # Drawn for the whole batch, so that no stream depends on which images are left.
            starts = [x + 0.5 * (walk.threat.random_start(x, streams) - x) if run % restarts else x for run in runs]
            if not len(rows):
                return
            target = goals[rows, (runs.start + number) // restarts]
            _walk(view, x[rows], y[rows], target, torch.stack(starts)[number, rows], judge, walk)


def _walk(view: nn.Module, x: Tensor, y: Tensor, target: Tensor, point: Tensor, judge: Judge, walk: _Walk) -> None:
    """Walk along the boundary between label and target, step back where it is crossed; then the final search."""
    best, nearest = point, torch.full_like(y, float("inf"), dtype=x.dtype)
    for _ in track(range(walk.steps)):
        _, lead, gradient = loss_and_gradient(view, point, y, targeted_margin(target))
        point = _step(point, x, lead.to(x), gradient, walk)
        distance, wrong = walk.threat.size(point - x), misled(margin_at(view, point, y))
        nearer = wrong & (distance < nearest)
        best, nearest = torch.where(expand_like(nearer, x), point, best), torch.where(nearer, distance, nearest)
        keep = judge(point, distance, wrong)
        point = torch.where(expand_like(wrong, x), x + walk.beta * (point - x), point)
        if keep is not None:
            x, y, target, point, best, nearest = (part[keep] for part in (x, y, target, point, best, nearest))
            if not len(x):
                return
    final_search(view, x, y, best, judge, walk.threat)


def _step(point: Tensor, x: Tensor, lead: Tensor, gradient: Tensor, walk: _Walk) -> Tensor:
    """A step beyond the linearised boundary, pulled a little towards where the image itself would cross it."""
    lead, gradient = lead.nan_to_num(0, 0, 0), gradient.nan_to_num(0, 0, 0).flatten(1)
    current, origin = point.flatten(1), x.flatten(1)
    gaps = torch.stack([-lead, (gradient * (current - origin)).sum(1) - lead])
    from_point, from_image = toward_hyperplane(torch.stack([current, origin]), gradient, gaps, walk.threat.norm)
    here, there = (walk.threat.size(part).clamp_min(1e-8) for part in (from_point, from_image))
    alpha = (here / (here + there)).clamp_max(walk.alpha_max)[:, None]
    mixed = (1 - alpha) * (current + walk.eta * from_point) + alpha * (origin + walk.eta * from_image)
    return mixed.clamp_(0, 1).view_as(x)
