"""How much robustness hangs on a part of a network: the robust criticality of its weights (RiFT, ICCV 2023)."""

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RADIUS = 0.1
STEPS = 10


def robust_criticality(
    model: nn.Module,
    tensors: Collection[str],
    x_adv: Tensor,
    y: Tensor,
    *,
    radius: float = RADIUS,
    steps: int = STEPS,
    batch_size: int = 250,
) -> float:
    """max over δ of loss(θ + δ) − loss(θ) on fixed adversarial examples, where δ moves the given weights alone.

    Each kernel or matrix w may move within ‖δ‖ ≤ radius·‖w‖, which does not depend on the scale of w. The maximum is
    sought by steps along the normalised gradient, each projected into the ball. RiFT (Zhu et al. 2023, eq. 2) measures
    the same with adversarial examples of the unmoved network.

    Args:
        model: Maps images [N, C, H, W] to logits [N, K]. It is left as it was.
        tensors: Names as in its `state_dict`. Where a kernel or matrix is among them, vectors are not moved.
        x_adv: Adversarial examples [N, C, H, W] of the model.
        y: Labels [N].
        radius: Of the ball, as a share of the norm of each weight.
        steps: How many steps of ascent.
        batch_size: Images in a pass.

    Returns:
        The rise of the mean cross-entropy over these images, at least 0.
    """
    moved = copy.deepcopy(model).eval()
    named = {name: parameter.requires_grad_(name in tensors) for name, parameter in moved.named_parameters()}
    own = [parameter for name, parameter in named.items() if name in tensors]
    weights = [weight for weight in own if weight.dim() > 1] or own
    centres = [weight.detach().clone() for weight in weights]
    reaches = [radius * centre.norm() for centre in centres]
    first, gradients = _loss_and_gradients(moved, weights, x_adv, y, batch_size=batch_size)
    highest = first
    for _ in range(steps):
        for weight, centre, reach, gradient in zip(weights, centres, reaches, gradients, strict=True):
            _ascend_(weight, centre, gradient, reach=reach, length=2.5 / steps * reach)
        loss, gradients = _loss_and_gradients(moved, weights, x_adv, y, batch_size=batch_size)
        highest = max(highest, loss)
    return highest - first


@torch.no_grad()
def _ascend_(weight: Tensor, centre: Tensor, gradient: Tensor, *, reach: Tensor, length: Tensor) -> None:
    """A step of this length along the gradient, back into the ball around the centre. A zero gradient moves nothing."""
    norm = gradient.norm()
    step = torch.where(norm > 0, length / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0)
    change = weight + step * gradient - centre
    far = change.norm()
    weight.copy_(centre + change * torch.where(far > reach, reach / far, 1.0))


def _loss_and_gradients(
    model: nn.Module, weights: Sequence[Tensor], x: Tensor, y: Tensor, *, batch_size: int
) -> tuple[float, list[Tensor]]:
    """The mean cross-entropy over all images, and its gradient in the weights."""
    total, gradients = 0.0, [torch.zeros_like(weight) for weight in weights]
    for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        loss = F.cross_entropy(model(images), labels, reduction="sum") / len(y)
        found = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else [None] * len(weights)
        for gradient, part in zip(gradients, found, strict=True):
            if part is not None:
                gradient += part
        total += loss.item()
    return total, gradients
