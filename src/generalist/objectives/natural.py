"""Natural training (NT)."""

import torch.nn.functional as F
from torch import Tensor, nn

from generalist.core.rng import Source
from generalist.core.types import LossTerms, Unit
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("natural")
def natural(
    model: nn.Module, x: Tensor, y: Tensor, *, generator: Source, epoch: float, label_smoothing: Unit = 0.0
) -> LossTerms:
    """CE(x)."""
    return LossTerms(F.cross_entropy(model(x), y, label_smoothing=label_smoothing))
