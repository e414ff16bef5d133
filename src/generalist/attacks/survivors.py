"""Images whose fate is decided stop costing anything."""

import torch
from torch import Tensor, nn

from generalist.attacks.view import misclassified

__all__ = ["Survivors", "misclassified"]


class Survivors:
    """Which images of a batch are still classified right, and the adversarial versions of those that are not.

    An attack works on the rows that are left (`rows`, indices into the batch). It reports candidates with what its own
    view of the model thinks of them; the model itself, unfolded and in float32, has the last word, so that no image is
    given up for a rounding difference.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self._model, self._y = model, y
        self.x_adv = x.detach().clone()
        self.rows = torch.arange(len(x), device=x.device)

    def __len__(self) -> int:
        return len(self.rows)

    def drop(self, candidates: Tensor, suspected: Tensor) -> Tensor | None:
        """Check the candidates [len(self), ...] that the attack suspects [len(self)] to be misclassified.

        Those that are leave with their candidate as x_adv. Gives back which of the rows stay [len(self)], for the
        attack to compact its own state with, or None where all of them stay.
        """
        if not suspected.any():
            return None
        wrong = suspected.clone()
        wrong[suspected] = misclassified(self._model, candidates[suspected], self._y[self.rows[suspected]])
        if not wrong.any():
            return None
        self.x_adv[self.rows[wrong]] = candidates[wrong].detach().to(self.x_adv.dtype)
        self.rows = self.rows[~wrong]
        return ~wrong
