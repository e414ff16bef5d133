"""Square, the black-box attack by random search (Andriushchenko et al. 2020): forward passes and nothing else.

One square window of each image is changed at a time, and the change stays if the margin of the label falls. The windows
shrink with the number of queries alone, so their size is the same for all images; where they lie and what they hold is
drawn from each image's own stream. Inside the search an image is [C, H·W] and a window a list of its pixels.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks.criteria import margin
from generalist.attacks.pace import paced
from generalist.attacks.survivors import Survivors
from generalist.attacks.view import MIN_ROWS, View, attack_view, count_passes, filled, steady_forward
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams, Source, per_image
from generalist.core.threat import TINY, Norm, Threat
from generalist.core.types import Count, Unit
from generalist.models import Patchable, Patches, float32_on_cpu

SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # the windows' area halves after these, of 10 000 queries
DECAY = {"l2": 2, "l1": 4}  # how steeply a bump falls off from its middle
BLOCK = 64  # queries whose random numbers are drawn at once: one at a time costs more than a small model does
PLACES, TURN = 4, 1  # random numbers a proposal uses for two corners and for the bump's direction; then one a channel
# Margins closer than this are one number summed in two orders, as happens when the batch shrinks. The path of an image
# must not depend on that.
ROUNDING = 1e-6

Propose = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(images, their best points, random numbers) → candidates, one of each, and the corners of all that changed"""


def square(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat,
    queries: Count = 5000,
    p_init: Unit = 0.8,
    restarts: Count = 1,
    generator: Source | None = None,
) -> Tensor:
    """x' misclassified where the search finds one, the image itself elsewhere: [B, C, H, W] → [B, C, H, W].

    `queries` proposals follow the start, in each of the `restarts`; `p_init` is the share of the image that the first
    windows cover.
    """
    if x.dim() != 4:
        raise UserError(f"square attacks images [B, C, H, W], got a batch of shape {list(x.shape)}")
    if min(queries, restarts) < 1:
        raise UserError(f"square needs queries and restarts of at least 1, got {queries}, {restarts}")
    x, (height, width) = x.detach(), x.shape[2:]
    survivors = Survivors(model, x, y)
    streams = per_image(generator, x, "square")
    with attack_view(model) as view, torch.no_grad():
        keep = survivors.drop(x, torch.ones_like(y, dtype=torch.bool))
        streams = streams if keep is None else streams[keep]
        # In ℓ2 and ℓ1 a proposal changes all pixels a little.
        patchable = Patchable.of(view.model, x) if threat.norm == "linf" and float32_on_cpu(x) else None
        for _ in paced(range(restarts)):
            search = _Search(view, patchable, survivors, x, y, streams)
            search.ask_(_start(search.x, search.streams, threat, height, width))
            propose = _repaint if threat.norm == "linf" else _exchange
            for stretch, side in paced(_stretches(queries, p_init, height, width, threat.norm)):
                if not len(survivors):
                    break
                search.draw_(stretch)
                search.look_closely_(side)
                window = _Window(side, height, width, threat.norm, x)
                search.go_(stretch, partial(propose, window=window, threat=threat))
            streams = search.streams
    return survivors.x_adv


class _Search:
    """The best point so far of every image that is left, and its random numbers."""

    def __init__(
        self,
        view: View,
        patchable: Patchable | None,
        survivors: Survivors,
        x: Tensor,
        y: Tensor,
        streams: ImageStreams,
    ) -> None:
        self._view, self._survivors, self._shape = view, survivors, x.shape[1:]
        self.x, self.y = x[survivors.rows].flatten(2), y[survivors.rows]
        self.best, self.margin = self.x, torch.full_like(self.y, -math.inf, dtype=x.dtype)
        self.streams, self._block, self._next = streams, self.x, self.y
        self._patchable, self._side = patchable, 0
        self._patches: Patches | None = None

    def draw_(self, stretch: range) -> None:
        """The uniform numbers of the proposals of a block of queries, [B, BLOCK, PLACES + TURN + C]."""
        if stretch.start % BLOCK == 0:
            self._block = self.streams.uniform(BLOCK, PLACES + TURN + self._shape[0]).to(self.x)

    def look_closely_(self, side: int) -> None:
        """From now on proposals differ from the best points in windows of this side."""
        if self._patchable is None or side == self._side:
            return
        self._side, known = side, filled(self.best.view(-1, *self._shape))
        self._patches = self._patchable.around(known, side)
        if self._patches is not None:
            self._patches.keep_(torch.arange(len(self.best)))
            count_passes(len(self.best))

    def go_(self, stretch: range, propose: Propose) -> None:
        """All queries of the stretch, of every image."""
        self._next = torch.full_like(self.y, stretch.start)
        for query in paced(stretch):
            if self._room == 1:
                self.ask_(*propose(self.x, self.best, self._block[:, query % BLOCK]))
                self._next += 1
                continue
            while (self._next <= query).any():
                self._ask_ahead_(stretch, propose)

    @property
    def _room(self) -> int:
        """How many queries of an image may be asked at once. Some will be for nothing.

        Where patches pay, the model is large, and only the rows are free that a small batch is filled up with.
        """
        return self._survivors.room if self._patches is None else max(1, MIN_ROWS // max(1, len(self.x)))

    def ask_(self, candidates: Tensor, corners: Tensor | None = None) -> None:
        """One query an image: keep what raises the margin of the others; drop the images that are through."""
        if not len(self.x):
            return
        images = candidates.view(-1, *self._shape)
        logits = self._logits(images, torch.arange(len(self.x), device=self.x.device), corners)
        value = margin(logits, self.y)
        better = value > self.margin + ROUNDING * logits.abs().amax(1)
        self._take_(better.nonzero()[:, 0])
        self.best = torch.where(better[:, None, None], candidates, self.best)
        self.margin = torch.where(better, value, self.margin)
        self._drop_(images, ~(value < 0))

    def _ask_ahead_(self, stretch: range, propose: Propose) -> None:
        """Several queries an image: proposals from the same point are good until one of them is taken.

        So the path of an image is that of single queries. Each goes on from the query after the one it took.
        """
        behind = (self._next < stretch.stop).nonzero()[:, 0]
        ahead = max(1, self._room * len(self.x) // len(behind))
        rows = behind.repeat_interleave(ahead)
        query = self._next[rows] + torch.arange(ahead, device=rows.device).repeat(len(behind))
        rows, query = rows[query < stretch.stop], query[query < stretch.stop]
        candidates, corners = propose(self.x[rows], self.best[rows], self._block[rows, query % BLOCK])
        logits = self._logits(candidates.view(-1, *self._shape), rows, corners)
        value = margin(logits, self.y[rows])
        better = value > self.margin[rows] + ROUNDING * logits.abs().amax(1)
        taken = better | ~(value < 0)
        first = torch.full_like(self._next, stretch.stop).scatter_reduce_(0, rows[taken], query[taken], "amin")
        self._next = torch.where(self._next < stretch.stop, (self._next + ahead).clamp_max(stretch.stop), self._next)
        won = (taken & (query == first[rows])).nonzero()[:, 0]
        images = rows[won]
        self._next[images] = query[won] + 1
        kept = won[better[won]]
        self._take_(kept)
        points, suspected = self.best.clone(), torch.zeros_like(self.y, dtype=torch.bool)
        points[images], suspected[images] = candidates[won], ~(value[won] < 0)
        self.best[rows[kept]], self.margin[rows[kept]] = candidates[kept], value[kept]
        self._drop_(points.view(-1, *self._shape), suspected)

    def _logits(self, images: Tensor, rows: Tensor, corners: Tensor | None) -> Tensor:
        """Of images made from the best points `rows` by changing windows at `corners`."""
        if self._patches is None or corners is None:
            return self._view(images).to(self.x)
        return steady_forward(self._patches, images, rows, corners)

    def _take_(self, which: Tensor) -> None:
        if self._patches is not None and len(which):
            self._patches.take_(which)

    def _drop_(self, images: Tensor, suspected: Tensor) -> None:
        """A tie or NaN is suspected as well: the model itself is asked."""
        keep = self._survivors.drop(images, suspected)
        if keep is not None:
            for name in ("x", "y", "best", "margin", "streams", "_block", "_next"):
                setattr(self, name, getattr(self, name)[keep])
            if self._patches is not None:
                self._patches.keep_(keep)


def _stretches(queries: int, p_init: float, height: int, width: int, norm: Norm) -> list[tuple[range, int]]:
    """Queries in a row that share the side of their windows, and the block that their random numbers come from."""
    key = lambda query: (query // BLOCK, _side(query / queries, p_init, height, width, norm))  # noqa: E731
    found = [(list(members), side) for (_, side), members in groupby(range(queries), key)]
    return [(range(members[0], members[-1] + 1), side) for members, side in found]


def _side(progress: float, p_init: float, height: int, width: int, norm: Norm) -> int:
    """The side of the windows once this share of the queries is spent."""
    p = p_init / 2 ** bisect_left(SCHEDULE, int(10_000 * progress))
    side = round(math.sqrt(p * height * width))
    if norm != "linf":
        side = max(side, 3) | 1  # a bump needs a middle
    return min(max(side, 1), height, width)


class _Window:
    """A square of pixels that can lie anywhere in the image, and the bump it may hold."""

    def __init__(self, side: int, height: int, width: int, norm: Norm, like: Tensor) -> None:
        self.side, self._width = side, width
        steps = torch.arange(side, device=like.device)
        self._cells = (steps[:, None] * width + steps).flatten()
        self._places = torch.tensor([height - side + 1, width - side + 1], device=like.device)
        if norm != "linf":
            bump = _bump(side, norm).to(like)
            self.bump, self.turned = bump.flatten(), bump.t().flatten()

    def corners(self, draws: Tensor) -> Tensor:
        """[B, 2] from two uniform numbers each."""
        return (draws * self._places).long()

    def at(self, corners: Tensor, channels: int) -> Tensor:
        """The pixels [B, C, side²] of windows."""
        cells = (corners[:, :1] * self._width + corners[:, 1:]) + self._cells
        return cells[:, None].expand(-1, channels, -1)


def _bump(side: int, norm: Norm) -> Tensor:
    """[side, side] of unit norm: a hill in the upper half, the same hill upside down in the lower."""
    upper, lower = _hill(side // 2, side, norm), _hill(side - side // 2, side, norm)
    bump = torch.cat([upper, -lower])
    return bump / bump.norm(p=2 if norm == "l2" else 1)


def _hill(height: int, width: int, norm: Norm) -> Tensor:
    """Σ_{k≥r} (k+1)^−DECAY at r pixels from the middle, of norm one."""
    reach = max(height // 2, width // 2) + 1
    falling = torch.arange(1, reach + 1, dtype=torch.float64).pow(-DECAY[norm]).flip(0).cumsum(0).flip(0)
    rows, columns = (torch.arange(height) - height // 2).abs(), (torch.arange(width) - width // 2).abs()
    hill = falling[torch.maximum(rows[:, None], columns)]
    return hill / hill.norm(p=2 if norm == "l2" else 1).clamp_min(TINY)


def _sign(draws: Tensor) -> Tensor:
    return 1 - 2 * (draws < 0.5).to(draws)


def _start(x: Tensor, streams: ImageStreams, threat: Threat, height: int, width: int) -> Tensor:
    """ℓ∞: vertical stripes of ±eps. ℓ2 and ℓ1: a grid of bumps."""
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


def _repaint(x: Tensor, best: Tensor, draws: Tensor, window: _Window, threat: Threat) -> tuple[Tensor, Tensor]:
    """ℓ∞: the window at +eps or −eps, one sign a channel."""
    corners = window.corners(draws[:, :2])
    pixels = window.at(corners, x.shape[1])
    sign = _sign(draws[:, PLACES + TURN :])[:, :, None] * threat.radius
    original, current = x.gather(2, pixels), best.gather(2, pixels)
    painted = (original + sign).clamp_(0, 1)
    # What is there already would waste the query (half of them, for single gray pixels): take the other signs then.
    idle = (painted == current).flatten(1).all(1)[:, None, None]
    painted = torch.where(idle, (original - sign).clamp_(0, 1), painted)
    return best.scatter(2, pixels, painted), corners


def _exchange(x: Tensor, best: Tensor, draws: Tensor, window: _Window, threat: Threat) -> tuple[Tensor, None]:
    """ℓ2 and ℓ1: a bump added in one window, paid for with what was in it and in a second one; all is scaled to fit."""
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
        new = new * channels  # more than there is: the projection takes the excess where it matters least
    return _fit(delta.scatter_(2, first, new), x, threat), None


def _fit(delta: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """ℓ2: scaled up or down to the radius, then the box. ℓ1: the nearest point of ball and box."""
    if threat.norm == "l1":
        return threat.project(x + delta, x)
    size = threat.size(delta)[:, None, None]
    return (x + delta * (threat.radius / size.clamp_min(TINY))).clamp_(0, 1)
