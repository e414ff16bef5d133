"""The proposals of Square: repaint one window (ℓ∞), or add a bump and pay for it in other windows (ℓ2 and ℓ1).

An image is [C, H·W] here, and a window is a list of its pixels. The caller passes the uniform numbers that decide where
windows lie and what they hold.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from generalist.core.rng import ImageStreams
from generalist.core.threat import TINY, Norm, Threat

DECAY = {"l2": 2, "l1": 4}  # how steeply a bump falls off from its centre
PLACES, TURN = 4, 1  # random numbers per proposal: two corners, the direction of the bump; then one per channel


class Window:
    """A square of pixels anywhere in the image, and the bump it may hold."""

    def __init__(self, side: int, height: int, width: int, norm: Norm, like: Tensor) -> None:
        self._width = width
        steps = torch.arange(side, device=like.device)
        self._cells = (steps[:, None] * width + steps).flatten()
        self._places = torch.tensor([height - side + 1, width - side + 1], device=like.device)
        if norm != "linf":
            bump = _bump(side, norm).to(like)
            self.bump, self.turned = bump.flatten(), bump.t().flatten()

    def corners(self, draws: Tensor) -> Tensor:
        """Upper left corners [B, 2] from uniform numbers [B, 2]."""
        return (draws * self._places).long()

    def at(self, corners: Tensor, channels: int) -> Tensor:
        """Indices [B, C, side²] of the pixels of the windows at `corners` [B, 2]."""
        cells = (corners[:, :1] * self._width + corners[:, 1:]) + self._cells
        return cells[:, None].expand(-1, channels, -1)


def _bump(side: int, norm: Norm) -> Tensor:
    """[side, side] of unit norm: a hill in the upper half and a negative one in the lower half."""
    upper, lower = _hill(side // 2, side, norm), _hill(side - side // 2, side, norm)
    bump = torch.cat([upper, -lower])
    return bump / bump.norm(p=2 if norm == "l2" else 1)


def _hill(height: int, width: int, norm: Norm) -> Tensor:
    """[height, width] of unit norm: proportional to Σ_{k≥r} (k+1)^−DECAY at r pixels from the centre."""
    reach = max(height // 2, width // 2) + 1
    falling = torch.arange(1, reach + 1, dtype=torch.float64).pow(-DECAY[norm]).flip(0).cumsum(0).flip(0)
    rows, columns = (torch.arange(height) - height // 2).abs(), (torch.arange(width) - width // 2).abs()
    hill = falling[torch.maximum(rows[:, None], columns)]
    return hill / hill.norm(p=2 if norm == "l2" else 1).clamp_min(TINY)


def _sign(draws: Tensor) -> Tensor:
    return 1 - 2 * (draws < 0.5).to(draws)


def first_points(x: Tensor, streams: ImageStreams, threat: Threat, height: int, width: int) -> Tensor:
    """Starting points [B, C, H·W]. ℓ∞: vertical stripes of ±eps. ℓ2 and ℓ1: a grid of bumps."""
    channels = x.shape[1]
    if threat.norm == "linf":
        stripes = _sign(streams.uniform(channels, width).to(x))
        return (x + threat.radius * stripes.repeat(1, 1, height)).clamp_(0, 1)
    side = max(min(height, width) // 5, 1)
    down, across = height // side, width // side
    bump = _bump(side, threat.norm).to(x)
    sign = _sign(streams.uniform(channels, down, 1, across, 1).to(x))
    turn = streams.uniform(1, down, 1, across, 1).to(x) < 0.5
    grid = sign * torch.where(turn, bump[:, None], bump.t()[:, None])
    top, left = (height - down * side) // 2, (width - across * side) // 2
    grid = grid.reshape(len(x), channels, down * side, across * side)
    margins = (left, width - across * side - left, top, height - down * side - top)
    return _fit(F.pad(grid, margins).flatten(2), x, threat)


def repaint(x: Tensor, best: Tensor, draws: Tensor, window: Window, threat: Threat) -> tuple[Tensor, Tensor]:
    """ℓ∞: set the window to +eps or −eps, one sign per channel. Returns candidates and the corners of the windows."""
    corners = window.corners(draws[:, :2])
    pixels = window.at(corners, x.shape[1])
    sign = _sign(draws[:, PLACES + TURN :])[:, :, None] * threat.radius
    original, current = x.gather(2, pixels), best.gather(2, pixels)
    painted = (original + sign).clamp_(0, 1)
    # A proposal equal to the best point would waste the query (half of them, for single gray pixels): flip its signs.
    idle = (painted == current).flatten(1).all(1)[:, None, None]
    painted = torch.where(idle, (original - sign).clamp_(0, 1), painted)
    return best.scatter(2, pixels, painted), corners


def exchange(x: Tensor, best: Tensor, draws: Tensor, window: Window, threat: Threat) -> tuple[Tensor, None]:
    """ℓ2 and ℓ1: add a bump in one window, paid for with the perturbation there and in a second window."""
    channels, power = x.shape[1], 2 if threat.norm == "l2" else 1
    first, second = (window.at(window.corners(part), channels) for part in (draws[:, :2], draws[:, 2:PLACES]))
    delta = best - x
    unspent = (threat.radius**power - delta.norm(p=power, dim=(1, 2), keepdim=True) ** power).clamp_min(0)
    old = delta.gather(2, first)
    delta.scatter_(2, first, 0)
    other = delta.gather(2, second)
    delta.scatter_(2, second, 0)
    old_size, other_size = (part.norm(p=power, dim=2, keepdim=True) for part in (old, other))
    mass = unspent / channels + old_size**power + other_size**power
    turn = draws[:, PLACES : PLACES + TURN] < 0.5
    bump = torch.where(turn, window.turned, window.bump)[:, None] * _sign(draws[:, PLACES + TURN :])[:, :, None]
    new = bump + old / old_size.clamp_min(TINY)
    new = new * (mass ** (1 / power) / new.norm(p=power, dim=2, keepdim=True).clamp_min(TINY))
    if threat.norm == "l1":
        new = new * channels  # more than the radius allows: the projection removes the excess where it matters least
    return _fit(delta.scatter_(2, first, new), x, threat), None


def _fit(delta: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """x + delta inside ball and box. ℓ2: scaled to the radius, then clipped. ℓ1: the nearest point of both."""
    if threat.norm == "l1":
        return threat.project(x + delta, x)
    size = threat.size(delta)[:, None, None]
    return (x + delta * (threat.radius / size.clamp_min(TINY))).clamp_(0, 1)
