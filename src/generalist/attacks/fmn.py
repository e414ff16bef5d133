"""FMN, the fast minimum-norm attack (Pintor et al. 2021): PGD in a ball whose radius follows the boundary.

The radius shrinks after a misclassified point and grows after one that is not. `fmn` only asks whether there is one
inside the given ball and leaves an image once there is (early exit). `fmn_distance` returns the distance itself.
Two things differ from the paper: steps are as long as the radius, and pixels that the box stops take no part in them.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from generalist.attacks.boundary import Judge, Nearest, final_search, misled, settle_inside
from generalist.attacks.criteria import margin
from generalist.attacks.hyperplane import toward_hyperplane
from generalist.attacks.progress import track
from generalist.attacks.survivors import Survivors, tries
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams, Source, per_image
from generalist.core.threat import Norm, Threat, expand_like, unblocked
from generalist.core.types import PositiveFloat, Steps, Unit

FIRST_STEP: dict[Norm, float] = {"linf": 1.0, "l2": 1.0, "l1": 0.5}  # in radii
LAST_STEP = 0.01  # of the first
LAST_GAMMA = 0.001


def fmn(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    restarts: Steps = 1,
    step_fraction: PositiveFloat | None = None,
    gamma: Unit = 0.3,
    generator: Source | None = None,
) -> Tensor:
    """FMN inside a ball: is the nearest misclassified point in it (Pintor et al. 2021)?

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps per restart.
        restarts: Number of starts. The first is the image, the others are random.
        step_fraction: Length of the first step as a multiple of the current radius; 1 by default, in ℓ1 0.5. It falls
            to a hundredth of that along a cosine.
        gamma: By which share the radius changes in a step at first, 0 to 1. It falls to 0.001.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: a misclassified point of the ball where FMN finds one, elsewhere the image itself.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.fmn(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    walk = _Walk.of(threat, steps, restarts, step_fraction, gamma)
    x = x.detach()
    streams = per_image(generator, x, "fmn")
    survivors = Survivors(model, x, y)
    survivors.drop(x, torch.ones_like(y, dtype=torch.bool))
    with attack_view(model) as view, torch.autocast(x.device.type, enabled=False):
        for runs, group in tries(survivors, restarts):
            starts = torch.stack([walk.start(x, streams, run) for run in runs])[group.number, group.rows]
            judge = partial(settle_inside, group, walk.threat.radius)
            _follow(view, x[group.rows], y[group.rows], starts, judge, walk)
    return survivors.x_adv


def fmn_distance(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    restarts: Steps = 1,
    step_fraction: PositiveFloat | None = None,
    gamma: Unit = 0.3,
    generator: Source | None = None,
) -> tuple[Tensor, Tensor]:
    """The nearest misclassified point that FMN finds, and its distance (Pintor et al. 2021).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius only says how far off further `restarts` begin.
        steps: Number of steps per restart.
        restarts: Number of starts. The first is the image, the others are random.
        step_fraction: Length of the first step as a multiple of the current radius; 1 by default, in ℓ1 0.5. It falls
            to a hundredth of that along a cosine.
        gamma: By which share the radius changes in a step at first, 0 to 1. It falls to 0.001.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        The points [B, ...] and their distances [B] in the norm of the threat. The distance is 0 where the image itself
        is misclassified, and inf where no misclassified point was found.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Identity()  # the pixels are the logits
        >>> x, y = torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([0, 0])
        >>> x_adv, distance = attacks.fmn_distance(model, x, y, threat="linf:1/2")
        >>> [round(float(value), 2) for value in distance]
        [0.25, 0.0]
    """
    walk = _Walk.of(threat, steps, restarts, step_fraction, gamma)
    x = x.detach()
    streams = per_image(generator, x, "fmn")
    nearest = Nearest(model, x, y)
    rows = nearest.rows
    with attack_view(model) as view, torch.autocast(x.device.type, enabled=False):
        for run in track(range(restarts)):
            start = walk.start(x, streams, run)  # drawn for the whole batch: no stream depends on which images are left
            if len(rows):
                _follow(view, x[rows], y[rows], start[rows], nearest.judge, walk)
    return nearest.x_adv, nearest.distance


class _Walk(NamedTuple):
    """The settings of a walk."""

    threat: Threat
    steps: int
    first_step: float
    gamma: float

    @classmethod
    def of(cls, threat: Threat | str, steps: int, restarts: int, step_fraction: float | None, gamma: float) -> "_Walk":
        threat = Threat.parse(threat)
        if min(steps, restarts) < 1:
            raise UserError(f"fmn needs steps and restarts of at least 1, got {steps}, {restarts}")
        return cls(threat, steps, FIRST_STEP[threat.norm] if step_fraction is None else step_fraction, gamma)

    def start(self, x: Tensor, streams: ImageStreams, run: int) -> Tensor:
        return x + 0.5 * (self.threat.random_start(x, streams) - x) if run else x

    def direction(self, gradient: Tensor) -> Tensor:
        """In ℓ1 too the gradient itself: a step along one pixel alone would need far more steps."""
        steepest = self.threat if self.threat.norm == "linf" else _L2
        return steepest.steepest(gradient)


_L2 = Threat.parse("l2:1")


def _follow(view: nn.Module, x: Tensor, y: Tensor, point: Tensor, judge: Judge, walk: _Walk) -> None:
    """Climb the margin in a ball that shrinks or grows with every step; then the final search."""
    threat = walk.threat
    best, nearest = x, torch.full_like(y, torch.inf, dtype=x.dtype)
    radius, widest = nearest, threat.size(torch.maximum(x, 1 - x))
    for step in track(range(walk.steps)):
        share = (1 + math.cos(math.pi * step / walk.steps)) / 2
        length = walk.first_step * (LAST_STEP + (1 - LAST_STEP) * share)
        gamma = LAST_GAMMA + (walk.gamma - LAST_GAMMA) * share
        _, lead, gradient = loss_and_gradient(view, point, y, margin)
        lead, wrong, distance = lead.to(x).nan_to_num(0, 0, 0), misled(lead), threat.size(point - x)
        nearer = wrong & (distance < nearest)
        best, nearest = torch.where(expand_like(nearer, x), point, best), torch.where(nearer, distance, nearest)
        keep = judge(point, distance, wrong)
        # Before the first misclassified point the radius is where the boundary would be if the model were linear.
        ahead = threat.size(toward_hyperplane(point.flatten(1), gradient.flatten(1), -lead, threat.norm))
        outside = torch.where(nearest.isfinite(), radius * (1 + gamma), distance + ahead)
        radius = torch.where(wrong, torch.minimum(radius * (1 - gamma), nearest), outside).minimum(widest)
        move = length * expand_like(radius, x) * walk.direction(unblocked(gradient, point))
        point = threat.project(point + move, x, radius=radius)
        if keep is not None:
            state = (x, y, point, best, nearest, radius, widest)
            x, y, point, best, nearest, radius, widest = (part[keep] for part in state)
            if not len(x):
                return
    final_search(view, x, y, best, judge, threat)
