"""What attacks share that look for the nearest misclassified point, whatever the radius (FAB, FMN)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import margin
from generalist.attacks.survivors import Copies
from generalist.attacks.view import misclassified
from generalist.core.threat import Threat, expand_like

SEARCH_STEPS = 3  # of the final search, as in the paper
SEARCH_OVERSHOOT = 0.05  # a point on the boundary itself is a tie, not a misclassification

Judge = Callable[[Tensor, Tensor, Tensor], Tensor | None]
"""(points, their distances, which ones may be misclassified) → which of the rows stay, or None where all do."""


def settle_inside(group: Copies, radius: float, points: Tensor, distance: Tensor, suspected: Tensor) -> Tensor | None:
    """A misclassified point inside the ball decides an image."""
    return group.drop(points, suspected & (distance <= radius))


class Nearest:
    """No early exit: the nearest misclassified point of each image is kept."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        wrong = misclassified(model, x, y)
        self._model, self._y = model, y
        self.x_adv = x.clone()
        self.distance = torch.where(wrong, 0.0, torch.full_like(wrong, float("inf"), dtype=x.dtype))
        self.rows = (~wrong).nonzero()[:, 0]

    def judge(self, points: Tensor, distance: Tensor, suspected: Tensor) -> Tensor | None:
        nearer = (suspected & (distance < self.distance[self.rows])).nonzero()[:, 0]
        if len(nearer):
            nearer = nearer[misclassified(self._model, points[nearer], self._y[self.rows[nearer]])]
            self.x_adv[self.rows[nearer]] = points[nearer]
            self.distance[self.rows[nearer]] = distance[nearer]
        return None


def final_search(view: nn.Module, x: Tensor, y: Tensor, best: Tensor, judge: Judge, threat: Threat) -> None:
    """Search the line from the best point back to the image for the zero of the margin, by the secant method."""
    low, high = (torch.full_like(y, end, dtype=x.dtype) for end in (0, 1))
    below, above = margin_at(view, x, y), margin_at(view, best, y)
    for _ in range(SEARCH_STEPS):
        zero = low + (high - low) * (below / (below - above)).nan_to_num(1, 1, 1).clamp(0, 1)
        at = zero + SEARCH_OVERSHOOT * (high - zero)
        point = x + expand_like(at, x) * (best - x)
        value = margin_at(view, point, y)
        wrong = misled(value)
        low, below = torch.where(wrong, low, at), torch.where(wrong, below, value)
        high, above = torch.where(wrong, at, high), torch.where(wrong, value, above)
        keep = judge(point, threat.size(point - x), wrong)
        if keep is not None:
            state = (x, y, best, low, high, below, above)
            x, y, best, low, high, below, above = (part[keep] for part in state)
            if not len(x):
                return


@torch.no_grad()
def margin_at(view: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return margin(view(x), y).to(x)


def misled(margins: Tensor) -> Tensor:
    """Which margins may mean misclassified. A tie or NaN counts: the judge asks the model itself."""
    return ~(margins < 0)
