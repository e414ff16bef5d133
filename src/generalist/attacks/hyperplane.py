"""The way from a point of the box [0, 1]^d to a hyperplane that is shortest in a norm: exact, a whole batch at once.

Every coordinate can only help by moving one way, and no further than the box. What is left is to share a known amount
of work Σ|wᵢ|·moveᵢ among the coordinates: in ℓ∞ and ℓ2 they all move at their own rate until the box stops them; in ℓ1
the heaviest coordinate goes first, then the next.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from generalist.core.threat import TINY, Norm


def toward_hyperplane(points: Tensor, normal: Tensor, gap: Tensor, norm: Norm) -> Tensor:
    """The smallest δ [..., B, d] with normal·δ = gap [..., B] and points + δ in [0, 1]; normal is [B, d].

    Where the box holds no such δ, the one that comes nearest to it. Coordinates of no weight never move.
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

    The work done is a concave function of the level, made of straight pieces: Newton's method climbs it from zero,
    stays below the answer, and is there as soon as the box stops no further coordinate.
    """
    rate, pace = (1, weight) if norm == "linf" else (weight, weight.square())
    level, before = torch.zeros_like(work), torch.full_like(work, torch.inf)
    while True:
        move = torch.minimum(level.to(weight) * rate, room)
        moving = _sum(pace * (room - move).sign())
        there = ~(moving < before)
        if there.all():
            return move
        more = (work - _sum(weight * move)) / moving.clamp_min(TINY**2)
        # who is there stays there, to the last bit, however long the others take
        level, before = torch.where(there, level, level + more.clamp_(0, 1 / TINY)), moving


def _heaviest_first(weight: Tensor, room: Tensor, work: Tensor) -> Tensor:
    """Whole rooms in the order of the weights until the work is done; the last one in part."""
    order = weight.argsort(dim=-1, descending=True, stable=True).expand_as(room)
    full = (weight * room).gather(-1, order).to(work)
    left = work - (full.cumsum(-1) - full)
    share = torch.where(full > 0, left / full.clamp_min(TINY**2), 0).clamp_(0, 1).to(room)
    return torch.zeros_like(room).scatter_(-1, order, share) * room


def _sum(terms: Tensor) -> Tensor:
    """Over the last dimension, which stays: thousands of terms, so in float64 where the device has it."""
    return terms.sum(-1, keepdim=True, dtype=_wide(terms))


def _wide(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64
