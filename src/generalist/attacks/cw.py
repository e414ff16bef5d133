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
    threat: Threat,
    steps: Steps = 30,
    step_size: float | Fraction | None = None,
    kappa: PositiveFloat = 50.0,
    random_start: bool = True,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """PGD that raises −max(z_y − max_{i≠y} z_i + κ, 0), the last point: [B, ...] → [B, ...]."""
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
