"""The momentum iterative method (Dong et al. 2018)."""

from fractions import Fraction

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import cross_entropy
from generalist.attacks.pgd import ascend
from generalist.attacks.progress import track
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.core.rng import Source, per_image
from generalist.core.threat import Threat, expand_like
from generalist.core.types import Criterion, NonNegativeFloat, Steps

SMALLEST = 1e-38  # float32 can still divide by it: the gradients of a confident model are tiny, and they count


def mim(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    steps: Steps = 20,
    step_size: float | Fraction | None = None,
    momentum: NonNegativeFloat = 1.0,
    random_start: bool = False,
    generator: Source | None = None,
    criterion: Criterion = cross_entropy,
) -> Tensor:
    """Momentum iterative method (Dong et al. 2018).

    g ← momentum · g + ∇criterion(x') / mean|∇criterion(x')|, then a projected step along the steepest direction of g.

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        steps: Number of steps.
        step_size: Length of a step in pixel units; eps/4 by default.
        momentum: Weight of the earlier gradients (μ in the paper).
        random_start: Start from a random point of the ball instead of the image.
        generator: Source of randomness. By default it depends on the pixels of each image alone.
        criterion: What to raise: (logits [B, K], labels [B]) → loss per image [B].

    Returns:
        [B, ...]: the last point.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.mim(model, x, y, threat="linf:8/255", steps=5)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    threat = Threat.parse(threat)
    size = threat.radius / 4 if step_size is None else float(step_size)
    x_adv = x = x.detach()
    total = torch.zeros_like(x)
    with attack_view(model) as view:
        if random_start:
            x_adv = threat.random_start(x, per_image(generator, x, "mim"))
        for _ in track(range(steps)):
            _, _, gradient = loss_and_gradient(view, x_adv, y, criterion)
            mean = gradient.abs().flatten(1).mean(1).clamp_min(SMALLEST)
            total = momentum * total + gradient / expand_like(mean, x)
            x_adv = ascend(x_adv, x, total, threat=threat, step_size=size)
    return x_adv
