"""Projected gradient ascent (Madry et al. 2018); FGSM is its one full step."""

from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import cross_entropy
from generalist.attacks.progress import track
from generalist.attacks.survivors import Survivors
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.core.errors import UserError
from generalist.core.rng import Source, per_image
from generalist.core.threat import Threat, unblocked
from generalist.core.types import Criterion, Steps

L1_DENSITY = 0.01  # the share of pixels an ℓ1 step moves (Tramèr and Boneh 2019)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: int = 10,
    step_size: float | Fraction | None = None,
    random_start: bool = True,
    restarts: Steps = 1,
    start: Tensor | None = None,
    generator: Source | None = None,
    criterion: Criterion = cross_entropy,
) -> Tensor:
    """x' after `steps` steepest steps on the criterion, each projected: [B, ...] → [B, ...].

    `step_size` is in pixel units, eps/4 if not given. Without a generator an image's start depends on its pixels; with
    `start` the climb begins there. The last point is returned, as in training. With `restarts`, the first last point
    that the model gets wrong, else that of highest loss. The model's mode, statistics and gradients stay as they were.
    """
    size = threat.radius / 4 if step_size is None else float(step_size)
    x = x.detach()
    climb = partial(_climb, threat=threat, steps=steps, step_size=size, criterion=criterion)
    with attack_view(model) as view:
        if start is not None:
            return climb(view, start, x, y)
        if not random_start:
            if restarts > 1:
                raise UserError(f"pgd given {restarts} restarts without a random start; all would be the same")
            return climb(view, x, x, y)
        streams = per_image(generator, x, "pgd")
        if restarts == 1:
            return climb(view, threat.random_start(x, streams), x, y)
        survivors = Survivors(model, x, y)
        best, best_loss = x.clone(), torch.full(y.shape, -torch.inf, device=x.device)
        for _ in track(range(restarts)):
            begin = threat.random_start(x, streams)  # of all images: what one draws does not depend on who is left
            x_adv = climb(view, begin[survivors.rows], x[survivors.rows], y[survivors.rows])
            keep = survivors.drop(x_adv, torch.ones_like(survivors.rows, dtype=torch.bool))
            rows, x_adv = survivors.rows, x_adv if keep is None else x_adv[keep]
            if not len(rows):
                break
            with torch.no_grad():
                loss = criterion(view(x_adv).float(), y[rows])
            better = loss > best_loss[rows]
            best[rows[better]], best_loss[rows[better]] = x_adv[better], loss[better]
    survivors.x_adv[survivors.rows] = best[survivors.rows]
    return survivors.x_adv


def _climb(
    view: nn.Module,
    x_adv: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    steps: int,
    step_size: float,
    criterion: Criterion,
) -> Tensor:
    for _ in track(range(steps)):
        _, _, gradient = loss_and_gradient(view, x_adv, y, criterion)
        x_adv = ascend(x_adv, x, gradient, threat=threat, step_size=step_size)
    return x_adv.detach()


def fgsm(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, criterion: Criterion = cross_entropy) -> Tensor:
    """One step of full size from the image itself (Goodfellow et al. 2015)."""
    return pgd(model, x, y, threat=threat, steps=1, step_size=threat.radius, random_start=False, criterion=criterion)


def ascend(x_adv: Tensor, x: Tensor, gradient: Tensor, *, threat: Threat, step_size: float) -> Tensor:
    """One projected step along the steepest direction."""
    if threat.norm == "l1":
        gradient = unblocked(gradient, x_adv)
    return threat.project(x_adv + step_size * threat.steepest(gradient, density=L1_DENSITY), x)
