"""AutoPGD: ascent with momentum that adapts its own step size (Croce and Hein 2020; in ℓ1, 2021)."""

import warnings
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from generalist.attacks import criteria
from generalist.attacks.ascent import Ascent, Towards, wrong
from generalist.attacks.progress import track
from generalist.attacks.survivors import Survivors, tries
from generalist.attacks.view import attack_view
from generalist.core.errors import UserError, unknown
from generalist.core.rng import ImageStreams, Source, normal_like, per_image
from generalist.core.threat import Threat, expand_like
from generalist.core.types import Count, Steps

Loss = Literal["ce", "dlr", "targeted"]
Stage = tuple[Threat, int]
"""A ball and the number of steps to take in it."""

FIRST_STEP = {"linf": 2.0, "l2": 2.0, "l1": 1.0}  # in eps


def apgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: int = 100,
    loss: Loss = "ce",
    restarts: int = 1,
    targets: int = 9,
    random_start: bool = True,
    step_fraction: float | None = None,
    wider_first: bool = True,
    stop_when_wrong: bool = True,
    generator: Source | None = None,
) -> Tensor:
    """Auto-PGD (Croce and Hein 2020; in ℓ1, Croce and Hein 2021): ascent with momentum and adaptive step size.

    With `loss="targeted"` there is one run towards each of the `targets` classes that follow the label in the logits of
    the clean image.

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps per run.
        loss: `"ce"` (cross-entropy), `"dlr"` (difference of logits ratio) or `"targeted"` (targeted DLR).
        restarts: Number of runs, and per target class if there are any.
        targets: Number of target classes, for `loss="targeted"`.
        random_start: Start from a random point instead of the image.
        step_fraction: Length of the first steps as a multiple of eps; 2 by default, in ℓ1 1.
        wider_first: In ℓ1, spend 0.3 of the steps in the ball of 3 eps, then 0.3 in the ball of 2 eps.
        stop_when_wrong: An image leaves as soon as the model itself misclassifies it (early exit). With False all
            images take all steps, as training wants it.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: a misclassified point of the ball where one was found, else the point of highest loss. With
        `stop_when_wrong=False` always the point of highest loss.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.apgd(model, x, y, threat="linf:8/255", steps=10, loss="dlr")
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    threat = Threat.parse(threat)
    if min(steps, restarts, targets) < 1:
        raise UserError(f"apgd needs steps, restarts and targets of at least 1, got {steps}, {restarts}, {targets}")
    x = x.detach()
    keys = _stream_keys(per_image(generator, x, "apgd", loss))
    stages = _stages(threat, steps) if wider_first and threat.norm == "l1" else [(threat, steps)]
    first_step = FIRST_STEP[threat.norm] if step_fraction is None else step_fraction
    survivors = Survivors(model, x, y)
    best, best_loss = x.clone(), torch.full(y.shape, -torch.inf, device=x.device)
    with attack_view(model) as view:
        with torch.no_grad():
            logits = view(x).float()
        towards, goals = _goals(loss, logits, y, targets)
        if stop_when_wrong:
            survivors.drop(x, wrong(logits, y))
        for runs, group in tries(survivors, goals.shape[1] * restarts, one_by_one=not stop_when_wrong):
            rows, target = group.rows, goals[group.rows, (runs.start + group.number) // restarts]
            # Every run has its own key, so what an image draws does not depend on the fate of the others.
            sources = [ImageStreams(run // restarts, run % restarts, ids=keys[survivors.rows]) for run in runs]
            start = x[rows]
            if random_start:
                start = torch.cat([_start(stages[0][0], x[survivors.rows], source) for source in sources])
            leaving = group if stop_when_wrong else None
            ascent = _run(view, start, x[rows], y[rows], target, stages, first_step, towards=towards, survivors=leaving)
            for number in range(len(runs)):
                mine = slice(None) if len(runs) == 1 else group.number == number
                rows, loss_found, points = group.rows[mine], ascent.best_loss[mine], ascent.best[mine]
                better = loss_found > best_loss[rows]
                best[rows] = torch.where(expand_like(better, x), points, best[rows])
                best_loss[rows] = torch.where(better, loss_found, best_loss[rows])
    survivors.x_adv[survivors.rows] = best[survivors.rows]
    return survivors.x_adv


def apgd_ce(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """APGD on the cross-entropy, the first stage of AutoAttack (see `apgd`).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps per run.
        restarts: Number of runs from random starts.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: a misclassified point of the ball where one was found, else the point of highest loss.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.apgd_ce(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    return apgd(model, x, y, threat=threat, loss="ce", steps=steps, restarts=restarts, generator=generator)


def apgd_dlr(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """APGD on the difference of logits ratio (see `apgd`).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps per run.
        restarts: Number of runs from random starts.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: a misclassified point of the ball where one was found, else the point of highest loss.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.apgd_dlr(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    return apgd(model, x, y, threat=threat, loss="dlr", steps=steps, restarts=restarts, generator=generator)


def apgd_t(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 100,
    restarts: Steps = 1,
    targets: Count = 9,
    generator: Source | None = None,
) -> Tensor:
    """APGD on the targeted difference of logits ratio, the second stage of AutoAttack (see `apgd`).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps per run.
        restarts: Number of runs per target class.
        targets: Number of target classes: those that follow the label in the logits of the clean image.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: a misclassified point of the ball where one was found, else the point of highest loss.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.apgd_t(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    return apgd(
        model,
        x,
        y,
        threat=threat,
        loss="targeted",
        steps=steps,
        restarts=restarts,
        targets=targets,
        generator=generator,
    )


def _run(
    view: nn.Module,
    x_adv: Tensor,
    x: Tensor,
    y: Tensor,
    target: Tensor,
    stages: Sequence[Stage],
    first_step: float,
    *,
    towards: Towards,
    survivors: Survivors | None,
) -> Ascent:
    """Climb from x_adv, stage by stage. Only a point of the last ball, the threat itself, decides about an image."""
    threat = stages[-1][0]
    for ball, steps in track(stages):
        step = torch.full(y.shape, first_step * ball.radius, device=x.device)
        ascent = Ascent(x, y, target, ball.project(x_adv, x), step)
        leaving = survivors if ball == threat else None
        ascent.climb_(view, threat=ball, steps=steps, towards=towards, survivors=leaving)
        if survivors is not None and len(ascent.y):
            # The best point of a wider ball may be enough once projected. And the view may round differently from the
            # model itself, which has the last word.
            near = threat.project(ascent.best, ascent.x)
            ascent.keep_(survivors.drop(near, torch.ones_like(ascent.halved)))
        x_adv, x, y, target = ascent.best, ascent.x, ascent.y, ascent.target
        if not len(y):
            break
    return ascent


def _stages(threat: Threat, steps: int) -> list[Stage]:
    """Balls that shrink to the ball of the threat."""
    wide = 3 * steps // 10
    stages = [(Threat(threat.norm, times * threat.eps), wide) for times in (3, 2)] if wide else []
    return [*stages, (threat, steps - 2 * wide)]


def _start(ball: Threat, x: Tensor, source: Source) -> Tensor:
    """ℓ∞: uniform in the ball; ℓ2: uniform on the sphere; ℓ1: the point of the ball nearest to Gaussian noise."""
    if ball.norm == "linf":
        return ball.random_start(x, source)
    noise = normal_like(x, source)
    return ball.project(x + (ball.radius * ball.steepest(noise) if ball.norm == "l2" else noise), x)


def _goals(loss: Loss, logits: Tensor, y: Tensor, targets: int) -> tuple[Towards, Tensor]:
    """How to make the criterion of a run, and the target classes of each run [B, runs]; one run without targets."""
    if loss not in get_args(Loss):
        raise unknown("loss", str(loss), get_args(Loss))
    classes = logits.shape[1]
    defined = classes >= {"ce": 1, "dlr": 3, "targeted": 4}[loss]
    if not defined:
        name = "DLR" if loss == "dlr" else "targeted DLR"
        warnings.warn(f"{name} is undefined for {classes} classes: the margin is raised instead", stacklevel=2)
    if loss == "targeted":
        ranked = logits.scatter(1, y[:, None], -torch.inf).topk(min(targets, classes - 1), dim=1).indices
        return (criteria.targeted_dlr if defined else criteria.targeted_margin), ranked
    criterion = criteria.cross_entropy if loss == "ce" else criteria.dlr if defined else criteria.margin
    return (lambda _: criterion), y[:, None]


def _stream_keys(streams: ImageStreams) -> Tensor:
    """48 random bits per image, the key of the random streams of its runs."""
    high, low = (streams.uniform(2) * 2**24).long().unbind(1)
    return (high << 24) | low
