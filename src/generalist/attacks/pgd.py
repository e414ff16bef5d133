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

L1_DENSITY = 0.01  # share of the pixels that an ℓ1 step moves (Tramèr and Boneh 2019)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: int = 10,
    step_size: float | Fraction | None = None,
    random_start: bool = True,
    restarts: Steps = 1,
    start: Tensor | None = None,
    generator: Source | None = None,
    criterion: Criterion = cross_entropy,
) -> Tensor:
    """Projected gradient ascent (Madry et al. 2018).

    x' ← Π(x' + step_size · steepest(∇criterion(x'))), where Π projects into the ball around x and the box [0, 1].

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps.
        step_size: Length of a step in pixel units; eps/4 by default.
        random_start: Start from a random point of the ball instead of the image.
        restarts: Number of random starts. An image leaves at the first last point that the model gets wrong.
        start: Points [B, ...] to start from instead.
        generator: Source of randomness. By default it depends on the pixels of each image alone.
        criterion: What to raise: (logits [B, K], labels [B]) → loss per image [B].

    Returns:
        [B, ...]: the last point, as training uses it. With several restarts, the first last point that the model gets
        wrong, else the one of highest loss.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.pgd(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    threat = Threat.parse(threat)
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
            begin = threat.random_start(x, streams)  # for all images: no draw depends on which ones are left
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


def fgsm(
    model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat | str, criterion: Criterion = cross_entropy
) -> Tensor:
    """Fast gradient sign method: one step of length eps from the image itself (Goodfellow et al. 2015).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        criterion: What to raise: (logits [B, K], labels [B]) → loss per image [B].

    Returns:
        [B, ...]: x' = Π(x + eps · steepest(∇criterion(x))).

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.fgsm(model, x, y, threat="linf:8/255")
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    threat = Threat.parse(threat)
    return pgd(model, x, y, threat=threat, steps=1, step_size=threat.radius, random_start=False, criterion=criterion)


def ascend(x_adv: Tensor, x: Tensor, gradient: Tensor, *, threat: Threat | str, step_size: float) -> Tensor:
    """One projected step along the steepest direction of the norm.

    Args:
        x_adv: Points [B, ...] to step from.
        x: The images [B, ...], the centres of the balls.
        gradient: Gradient of the criterion at x_adv, [B, ...].
        threat: Norm and radius, such as `"linf:8/255"`.
        step_size: Length of the step in pixel units.

    Returns:
        [B, ...]: the next points, inside the ball and the box. An ℓ1 step moves a hundredth of the pixels.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> x, gradient = torch.tensor([[0.5, 0.0, 0.9]]), torch.tensor([[3.0, -1.0, 2.0]])
        >>> attacks.ascend(x, x, gradient, threat="linf:1/4", step_size=0.125)
        tensor([[0.6250, 0.0000, 1.0000]])
    """
    threat = Threat.parse(threat)
    if threat.norm == "l1":
        gradient = unblocked(gradient, x_adv)
    return threat.project(x_adv + step_size * threat.steepest(gradient, density=L1_DENSITY), x)
