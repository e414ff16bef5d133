"""Projection of points of the box [0, 1]^d onto hyperplanes in a norm: exact, a whole batch at once.

Each coordinate can only help in one direction, and only up to the edge of the box. The required work Σ|wᵢ|·moveᵢ has to
be shared among the coordinates. In ℓ∞ and ℓ2 all coordinates move at their own rate until the box stops them. In ℓ1 the
coordinate of the largest weight moves first, then the next.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from generalist.core.threat import TINY, Norm


def toward_hyperplane(points: Tensor, normal: Tensor, gap: Tensor, norm: Norm) -> Tensor:
    """The smallest δ with normal·δ = gap and points + δ in [0, 1].

    Args:
        points: Points of the box, [..., B, d].
        normal: Normals of the hyperplanes, [B, d]. Coordinates of weight zero never move.
        gap: Required change of normal·point, [..., B].
        norm: The norm in which δ is smallest.

    Returns:
        δ [..., B, d]. Where the box contains no such δ, the one that comes nearest to the hyperplane.
    """
    direction = normal.sign() * gap.sign()[..., None]
    weight = normal.abs()
    scale = weight.amax(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    weight = F.threshold(weight / scale, TINY, 0)
    room = ((direction > 0).to(points) - points).abs_() * weight.sign()
    work = gap.to(_wide(gap)).abs()[..., None] / scale
    move = _heaviest_first(weight, room, work) if norm == "l1" else _side_by_side(weight, room, work, norm)
    return move * direction


def _side_by_side(weight: Tensor, room: Tensor, work: Tensor, norm: Norm) -> Tensor:
    """Moves min(level·rate, room), the level chosen so that Σ weight·move = work.

    The work done is a concave, piecewise linear function of the level. Newton's method started at zero stays below the
    answer, and has reached it as soon as the box stops no further coordinate.
    """
    rate, work_rate = (1, weight) if norm == "linf" else (weight, weight.square())
    level, before = torch.zeros_like(work), torch.full_like(work, torch.inf)
    while True:
        move = torch.minimum(level.to(weight) * rate, room)
        moving = _sum(work_rate * (room - move).sign())
        finished = ~(moving < before)
        if finished.all():
            return move
        more = (work - _sum(weight * move)) / moving.clamp_min(TINY**2)
        # A finished row keeps its level to the last bit, however many rounds the others take.
        level, before = torch.where(finished, level, level + more.clamp_(0, 1 / TINY)), moving


def _heaviest_first(weight: Tensor, room: Tensor, work: Tensor) -> Tensor:
    """Move coordinates to the edge of the box, by descending weight, until the work is done; the last one in part."""
    order = weight.argsort(dim=-1, descending=True, stable=True).expand_as(room)
    full = (weight * room).gather(-1, order).to(work)
    left = work - (full.cumsum(-1) - full)
    share = torch.where(full > 0, left / full.clamp_min(TINY**2), 0).clamp_(0, 1).to(room)
    return torch.zeros_like(room).scatter_(-1, order, share) * room


def _sum(terms: Tensor) -> Tensor:
    """Sum over the last dimension, kept. Thousands of terms: in float64 where the device has it."""
    return terms.sum(-1, keepdim=True, dtype=_wide(terms))


def _wide(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64
