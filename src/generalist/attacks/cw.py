"""PGD on Carlini and Wagner's margin, the CW column of the robustness tables (Carlini and Wagner 2017)."""

from fractions import Fraction

from torch import Tensor, nn

from generalist.attacks import criteria
from generalist.attacks.pgd import pgd
from generalist.core.rng import Source
from generalist.core.threat import Threat
from generalist.core.types import PositiveFloat, Steps


def cw(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 30,
    step_size: float | Fraction | None = None,
    kappa: PositiveFloat = 50.0,
    random_start: bool = True,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """PGD on the margin of Carlini and Wagner (2017): it raises −max(z_y − max_{i≠y} z_i + κ, 0).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps.
        step_size: Length of a step in pixel units; eps/4 by default.
        kappa: Margin, in logits, beyond which there is nothing more to gain (κ).
        random_start: Start from a random point of the ball instead of the image.
        restarts: Number of random starts, as in `pgd`.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, ...]: the last point, as `pgd` returns it.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.cw(model, x, y, threat="linf:8/255", steps=10)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    return pgd(
        model,
        x,
        y,
        threat=threat,
        steps=steps,
        step_size=step_size,
        random_start=random_start,
        restarts=restarts,
        generator=generator,
        criterion=criteria.cw(kappa),
    )
