"""AutoPGD: ascent with momentum whose step size looks after itself (Croce and Hein 2020; in ℓ1, 2021)."""

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
"""A ball and the steps to take in it."""

FIRST_STEP = {"linf": 2.0, "l2": 2.0, "l1": 1.0}  # in eps


def apgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
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
    """A misclassified point of the ball where one was found, else the point of highest loss: [B, ...] → [B, ...].

    loss="targeted" makes a run towards each of the `targets` classes that come next on the clean image.
    `step_fraction` is the first step in eps, 2 or in ℓ1 1; in ℓ1, `wider_first` spends 0.3 of the steps in the ball of
    3 eps and 0.3 in that of 2 eps. An image leaves as soon as the model itself gets it wrong. With
    stop_when_wrong=False all take all steps and the point of highest loss is returned, as training wants it.
    """
    if min(steps, restarts, targets) < 1:
        raise UserError(f"apgd needs steps, restarts and targets of at least 1, got {steps}, {restarts}, {targets}")
    x = x.detach()
    names = _names(per_image(generator, x, "apgd", loss))
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
            # every run has a name of its own, so what an image draws does not depend on how the others fared
            sources = [ImageStreams(run // restarts, run % restarts, ids=names[survivors.rows]) for run in runs]
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
    threat: Threat,
    steps: Steps = 100,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """APGD on the cross-entropy."""
    return apgd(model, x, y, threat=threat, loss="ce", steps=steps, restarts=restarts, generator=generator)


def apgd_dlr(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: Steps = 100,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """APGD on the difference of logits ratio."""
    return apgd(model, x, y, threat=threat, loss="dlr", steps=steps, restarts=restarts, generator=generator)


def apgd_t(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: Steps = 100,
    restarts: Steps = 1,
    targets: Count = 9,
    generator: Source | None = None,
) -> Tensor:
    """APGD on the targeted difference of logits ratio, towards the `targets` runners-up one after the other."""
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
    """Climb from x_adv, stage by stage; only a point of the last ball, the threat itself, decides about an image."""
    threat = stages[-1][0]
    for ball, steps in track(stages):
        step = torch.full(y.shape, first_step * ball.radius, device=x.device)
        ascent = Ascent(x, y, target, ball.project(x_adv, x), step)
        leaving = survivors if ball == threat else None
        ascent.climb_(view, threat=ball, steps=steps, towards=towards, survivors=leaving)
        if survivors is not None and len(ascent.y):
            # what the wider balls lead to may do already; and the view may round otherwise than the model itself
            near = threat.project(ascent.best, ascent.x)
            ascent.keep_(survivors.drop(near, torch.ones_like(ascent.halved)))
        x_adv, x, y, target = ascent.best, ascent.x, ascent.y, ascent.target
        if not len(y):
            break
    return ascent


def _stages(threat: Threat, steps: int) -> list[Stage]:
    """Balls that shrink to the threat's own."""
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
    """How a run's criterion is made, and the target classes of each run [B, runs]; one run if they do not matter."""
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


def _names(streams: ImageStreams) -> Tensor:
    """48 random bits for each image, after which the streams of its runs are named."""
    high, low = (streams.uniform(2) * 2**24).long().unbind(1)
    return (high << 24) | low
