"""Natural training (NT)."""

import torch.nn.functional as F
from torch import Tensor, nn

from generalist.core.types import Loss, LossTerms, StepContext, Unit
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("natural")
def natural(model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext, label_smoothing: Unit = 0.0) -> Loss:
    """CE(x).

    Args:
        label_smoothing: The share of the label that is spread over all classes.
    """
    return lambda: LossTerms(F.cross_entropy(model(x), y, label_smoothing=label_smoothing))
