"""Square, the black-box attack by random search (Andriushchenko et al. 2020): forward passes and nothing else.

One square window of each image is changed at a time, and the change stays if the margin of the label falls. The windows
shrink with the number of queries alone, so their size is the same for all images; where they lie and what they hold is
drawn from each image's own stream (`windows`). Inside the search an image is [C, H·W].
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from generalist.attacks.criteria import margin
from generalist.attacks.progress import track
from generalist.attacks.survivors import Survivors
from generalist.attacks.view import MIN_ROWS, View, attack_view, count_passes, filled, steady_forward
from generalist.attacks.windows import PLACES, TURN, Window, exchange, first_points, repaint
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams, Source, per_image
from generalist.core.threat import Norm, Threat
from generalist.core.types import Count, Steps, Unit
from generalist.fastpass import Patchable, Patches, float32_on_cpu

SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # the windows' area halves after these, of 10 000 queries
BLOCK = 64  # queries whose random numbers are drawn at once: one at a time costs more than a small model does
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
    restarts: Steps = 1,
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
        for _ in track(range(restarts)):
            search = _Search(view, patchable, survivors, x, y, streams)
            search.ask_(first_points(search.x, search.streams, threat, height, width))
            propose = repaint if threat.norm == "linf" else exchange
            for stretch, side in track(_stretches(queries, p_init, height, width, threat.norm)):
                if not len(survivors):
                    break
                search.draw_(stretch)
                search.look_closely_(side)
                window = Window(side, height, width, threat.norm, x)
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
            count_passes(3 * len(self.best))  # the maps, and a test of two

    def go_(self, stretch: range, propose: Propose) -> None:
        """All queries of the stretch, of every image."""
        self._next = torch.full_like(self.y, stretch.start)
        for query in track(stretch):
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
        return self._survivors.tries_per_image if self._patches is None else max(1, MIN_ROWS // max(1, len(self.x)))

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
