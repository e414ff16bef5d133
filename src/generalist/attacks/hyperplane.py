"""The way from a point of the box [0, 1]^d to a hyperplane that is shortest in a norm: exact, a whole batch at once.

Every coordinate can only help by moving one way, and no further than the box. What is left is to share a known amount
of work Σ|wᵢ|·moveᵢ among the coordinates: in ℓ∞ and ℓ2 they all move at their own rate until the box stops them (one
sort of the levels at which it does); in ℓ1 the heaviest coordinate goes first, then the next.
"""

import torch
from torch import Tensor

from generalist.core.threat import TINY, Norm


def toward_hyperplane(points: Tensor, normal: Tensor, gap: Tensor, norm: Norm) -> Tensor:
    """The smallest δ [B, d] with normal·δ = gap [B] and points + δ in [0, 1].

    Where the box holds no such δ, the one that comes nearest to it. Coordinates of no weight never move.
    """
    wide = torch.float32 if points.device.type == "mps" else torch.float64  # sums of thousands of terms; MPS has no 64
    origin, weight = points.to(wide), normal.to(wide).abs()
    scale = weight.amax(1, keepdim=True).clamp_min(1e-38)
    weight = torch.where(weight > TINY * scale, weight / scale, 0)
    work = gap.to(wide).abs()[:, None] / scale
    direction = normal.sign() * gap.sign()[:, None]
    room = torch.where(direction > 0, 1 - origin, origin).clamp_min_(0)
    move = _heaviest_first(weight, room, work) if norm == "l1" else _side_by_side(weight, room, work, norm)
    return move.to(points.dtype) * direction


def _side_by_side(weight: Tensor, room: Tensor, work: Tensor, norm: Norm) -> Tensor:
    """Moves min(level·rate, room), the level chosen so that Σ weight·move = work."""
    rate = (weight > 0).to(weight) if norm == "linf" else weight
    stop, order = torch.where(rate > 0, room / rate, 0).sort(1)  # the level at which the box stops each coordinate
    stopped = (weight * room).gather(1, order)
    before = stopped.cumsum(1) - stopped  # the work of those stopped earlier
    slope = (weight * rate).gather(1, order).flip(1).cumsum(1).flip(1)  # the pace of those still moving
    at = torch.searchsorted(before + stop * slope, work).clamp_max_(weight.shape[1] - 1)
    level = (work - before.gather(1, at)) / slope.gather(1, at).clamp_min(TINY**2)
    return torch.minimum(torch.minimum(level, stop.gather(1, at)) * rate, room)


def _heaviest_first(weight: Tensor, room: Tensor, work: Tensor) -> Tensor:
    """Whole rooms in the order of the weights until the work is done; the last one in part."""
    order = weight.argsort(dim=1, descending=True, stable=True)
    full = (weight * room).gather(1, order)
    left = work - (full.cumsum(1) - full)
    share = torch.where(full > 0, left / full.clamp_min(TINY**2), 0).clamp_(0, 1)
    return torch.zeros_like(room).scatter_(1, order, share) * room
