"""What an attack raises: (logits [B, K], labels [B]) → [B]."""

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{i≠y} z_i − z_y: positive where the image is misclassified."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], float("-inf")).amax(1)
    return others - own
