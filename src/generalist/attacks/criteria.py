"""Criteria, what an attack raises: (logits [B, K], labels [B]) → loss per image [B].

cross_entropy, margin, dlr                         are criteria
targeted_margin(t), targeted_dlr(t), cw(κ), kl(p)  make a criterion; t [B] and p [B, K] belong to the images of a batch
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.threat import TINY
from generalist.core.types import Criterion


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per image: −log softmax(z)_y.

    Args:
        logits: [B, K].
        y: Labels [B].

    Returns:
        [B].

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> attacks.cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
        tensor([0.6931])
    """
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Margin per image: max_{i≠y} z_i − z_y. It is positive where the image is misclassified.

    Args:
        logits: [B, K].
        y: Labels [B].

    Returns:
        [B].

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> attacks.margin(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]))
        tensor([-1.])
    """
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], float("-inf")).amax(1)
    return others - own


def targeted_margin(target: Tensor) -> Criterion:
    """A criterion towards the target classes t [B]: z_t − z_y."""

    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        _check_one_row_per_image(target, logits)
        wanted, own = logits.gather(1, torch.stack([target, y], 1)).unbind(1)
        return wanted - own

    return criterion


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020): the margin divided by z_π1 − z_π3.

    π sorts the logits in descending order. Neither a shift nor a scale of the logits changes the value.
    """
    first, _, third = logits.topk(3, dim=1).values.unbind(1)
    return margin(logits, y) / (first - third + TINY)


def targeted_dlr(target: Tensor) -> Criterion:
    """A criterion towards the target classes t [B]: (z_t − z_y) / (z_π1 − ½(z_π3 + z_π4)) (Croce and Hein 2020)."""
    towards = targeted_margin(target)

    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        first, _, third, fourth = logits.topk(4, dim=1).values.unbind(1)
        return towards(logits, y) / (first - (third + fourth) / 2 + TINY)

    return criterion


def cw(kappa: float = 50.0) -> Criterion:
    """A criterion: −max(z_y − max_{i≠y} z_i + κ, 0), the margin cut off at κ (Carlini and Wagner 2017)."""
    return lambda logits, y: (margin(logits, y) - kappa).clamp_max(0)


def kl(reference: Tensor) -> Criterion:
    """A criterion that ignores the labels: KL(p ‖ softmax(z)) per image, as TRADES raises it (Zhang et al. 2019).

    Args:
        reference: Probabilities p [B, K], one row per image of the attacked batch.

    Returns:
        A criterion: (logits [B, K], labels [B]) → [B].

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> criterion = attacks.kl(torch.tensor([[0.5, 0.5]]))
        >>> criterion(torch.tensor([[2.0, 2.0]]), torch.tensor([0]))
        tensor([0.])
    """

    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        _check_one_row_per_image(reference, logits)
        return F.kl_div(F.log_softmax(logits, 1), reference, reduction="none").sum(1)

    return criterion


def _check_one_row_per_image(given: Tensor, logits: Tensor) -> None:
    """Refuse rows that do not match: they would be broadcast, and the attack would silently raise the wrong thing."""
    if len(given) != len(logits):
        raise UserError(f"a criterion made for {len(given)} images was given the logits of {len(logits)}")
