"""What an attack raises: (logits [B, K], labels [B]) → [B].

cross_entropy, margin, dlr                         are criteria
targeted_margin(t), targeted_dlr(t), cw(κ), kl(p)  make one; t [B] and p [B, K] belong to the images of one batch
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.types import Criterion

TINY = 1e-12


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{i≠y} z_i − z_y: positive where the image is misclassified."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], float("-inf")).amax(1)
    return others - own


def targeted_margin(target: Tensor) -> Criterion:
    """z_t − z_y, towards class t."""

    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        _check_one_each(target, logits)
        wanted, own = logits.gather(1, torch.stack([target, y], 1)).unbind(1)
        return wanted - own

    return criterion


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin over z_π1 − z_π3 (Croce and Hein 2020): neither shift nor scale of the logits matters."""
    first, _, third = logits.topk(3, dim=1).values.unbind(1)
    return margin(logits, y) / (first - third + TINY)


def targeted_dlr(target: Tensor) -> Criterion:
    """(z_t − z_y) / (z_π1 − ½(z_π3 + z_π4))."""
    towards = targeted_margin(target)

    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        first, _, third, fourth = logits.topk(4, dim=1).values.unbind(1)
        return towards(logits, y) / (first - (third + fourth) / 2 + TINY)

    return criterion


def cw(kappa: float = 50.0) -> Criterion:
    """−max(z_y − max_{i≠y} z_i + κ, 0): the margin, which is enough when it reaches κ (Carlini and Wagner 2017)."""
    return lambda logits, y: (margin(logits, y) - kappa).clamp_max(0)


def kl(reference: Tensor) -> Criterion:
    """KL(p ‖ softmax(z)) for probabilities p; the labels do not matter (TRADES)."""

    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        _check_one_each(reference, logits)
        return F.kl_div(F.log_softmax(logits, 1), reference, reduction="none").sum(1)

    return criterion


def _check_one_each(given: Tensor, logits: Tensor) -> None:
    """Rows that do not match would be broadcast, and the attack would chase the wrong thing without a word."""
    if len(given) != len(logits):
        raise UserError(f"a criterion made for {len(given)} images was given the logits of {len(logits)}")
