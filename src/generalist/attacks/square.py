"""Square, the black-box attack by random search (Andriushchenko et al. 2020): forward passes only.

Each query changes one square window per image. The change is kept if the margin of the label falls. The windows shrink
with the number of queries, so their size is the same for all images. Where they lie and what they hold is drawn from
the per-image RNG (`windows`). Inside the search an image is [C, H·W].
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
from generalist.attacks.view import MIN_ROWS, View, attack_view, count_passes, pad_rows, steady_forward
from generalist.attacks.windows import PLACES, TURN, Window, exchange, first_points, repaint
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams, Source, per_image
from generalist.core.threat import Norm, Threat
from generalist.core.types import Count, Steps, Unit
from generalist.fastpass import WindowPasses

SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10 000 queries: the windows' area halves after these
BLOCK = 64  # random numbers are drawn for this many queries at once: one by one costs more than a small model's pass
# Margins that differ by less than this share of the largest logit are equal up to the order of summation, which changes
# when the batch shrinks. The path of an image must not depend on that.
ROUNDING = 1e-6

Propose = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(images, their best points, random numbers) → one candidate per image, and the corners of the changed windows.

The corners are None where a candidate differs in more than one window.
"""


def square(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | str,
    queries: Count = 5000,
    p_init: Unit = 0.8,
    restarts: Steps = 1,
    generator: Source | None = None,
) -> Tensor:
    """Square attack: random search with forward passes only (Andriushchenko et al. 2020).

    An image leaves the search as soon as the model misclassifies it (early exit).

    Args:
        model: Maps images [B, C, H, W] to logits [B, K]. It is left as it was.
        x: Images [B, C, H, W] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        queries: Proposals per image and restart, after the start.
        p_init: Share of the image that the first windows cover, 0 to 1.
        restarts: Independent searches for the images that are left.
        generator: Source of randomness. By default it depends on the pixels of each image alone.

    Returns:
        [B, C, H, W]: a misclassified image of the ball where the search finds one, elsewhere the image itself.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.square(model, x, y, threat="linf:8/255", queries=20)
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    threat = Threat.parse(threat)
    if x.dim() != 4:
        raise UserError(f"square attacks images [B, C, H, W], got a batch of shape {list(x.shape)}")
    if min(queries, restarts) < 1:
        raise UserError(f"square needs queries and restarts of at least 1, got {queries}, {restarts}")
    x, (height, width) = x.detach(), x.shape[2:]
    survivors = Survivors(model, x, y)
    streams = per_image(generator, x, "square")
    propose = repaint if threat.norm == "linf" else exchange
    with attack_view(model) as view, torch.no_grad():
        keep = survivors.drop(x, torch.ones_like(y, dtype=torch.bool))
        streams = streams if keep is None else streams[keep]
        for _ in track(range(restarts)):
            search = _Search(view, survivors, x, y, streams)
            search.query_(first_points(search.x, search.streams, threat, height, width))
            for stretch, side in track(_stretches(queries, p_init, height, width, threat.norm)):
                if not len(survivors):
                    break
                search.draw_(stretch)
                if threat.norm == "linf":  # in ℓ2 and ℓ1 a proposal changes every pixel a little
                    search.expect_windows_(side)
                window = Window(side, height, width, threat.norm, x)
                search.run_(stretch, partial(propose, window=window, threat=threat))
            streams = search.streams
    return survivors.x_adv


class _Search:
    """The best point so far of every image that is left, and its random numbers."""

    def __init__(self, view: View, survivors: Survivors, x: Tensor, y: Tensor, streams: ImageStreams) -> None:
        self._view, self._survivors, self._shape = view, survivors, x.shape[1:]
        self.x, self.y = x[survivors.rows].flatten(2), y[survivors.rows]
        self.best, self.margin = self.x, torch.full_like(self.y, -math.inf, dtype=x.dtype)
        self.streams, self._block, self._next = streams, self.x, self.y
        self._side = 0
        self._window_passes: WindowPasses | None = None

    def draw_(self, stretch: range) -> None:
        """Draw the uniform numbers for the proposals of a block of queries, [B, BLOCK, PLACES + TURN + C]."""
        if stretch.start % BLOCK == 0:
            self._block = self.streams.uniform(BLOCK, PLACES + TURN + self._shape[0]).to(self.x)

    def expect_windows_(self, side: int) -> None:
        """From now on, proposals differ from the best points in one window of this side, in pixels."""
        if side == self._side:
            return
        self._side, known = side, pad_rows(self.best.view(-1, *self._shape))
        self._window_passes = self._view.window_passes(known, side)
        if self._window_passes is not None:
            self._window_passes.keep_(torch.arange(len(self.best)))
            count_passes(3 * len(self.best))  # one for the known maps, two for the check that the passes agree

    def run_(self, stretch: range, propose: Propose) -> None:
        """Make all queries of the stretch for every image."""
        self._next = torch.full_like(self.y, stretch.start)
        for query in track(stretch):
            if self._queries_at_once == 1:
                self.query_(*propose(self.x, self.best, self._block[:, query % BLOCK]))
                self._next += 1
                continue
            while (self._next <= query).any():
                self._query_ahead_(stretch, propose)

    @property
    def _queries_at_once(self) -> int:
        """How many queries per image share a pass. Those after the first that is accepted are wasted.

        Where window passes are used, the model is large. Then only the rows that would be padding are free.
        """
        if self._window_passes is None:
            return self._survivors.tries_per_image
        return max(1, MIN_ROWS // max(1, len(self.x)))

    def query_(self, candidates: Tensor, corners: Tensor | None = None) -> None:
        """One query per image: keep the candidates of higher margin, drop the images that are misclassified."""
        if not len(self.x):
            return
        images = candidates.view(-1, *self._shape)
        logits = self._logits(images, torch.arange(len(self.x), device=self.x.device), corners)
        value = margin(logits, self.y)
        better = value > self.margin + ROUNDING * logits.abs().amax(1)
        self._accept_(better.nonzero()[:, 0])
        self.best = torch.where(better[:, None, None], candidates, self.best)
        self.margin = torch.where(better, value, self.margin)
        self._drop_(images, ~(value < 0))

    def _query_ahead_(self, stretch: range, propose: Propose) -> None:
        """Several queries per image: proposals from the same point are valid until one of them is accepted.

        So the path of an image is the same as with single queries. It continues with the query after the accepted one.
        """
        behind = (self._next < stretch.stop).nonzero()[:, 0]
        ahead = max(1, self._queries_at_once * len(self.x) // len(behind))
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
        self._accept_(kept)
        points, suspected = self.best.clone(), torch.zeros_like(self.y, dtype=torch.bool)
        points[images], suspected[images] = candidates[won], ~(value[won] < 0)
        self.best[rows[kept]], self.margin[rows[kept]] = candidates[kept], value[kept]
        self._drop_(points.view(-1, *self._shape), suspected)

    def _logits(self, images: Tensor, rows: Tensor, corners: Tensor | None) -> Tensor:
        """Logits of images made from the best points `rows` by changing windows at `corners`."""
        if self._window_passes is None or corners is None:
            return self._view(images).to(self.x)
        return steady_forward(self._window_passes, images, rows, corners)

    def _accept_(self, which: Tensor) -> None:
        if self._window_passes is not None and len(which):
            self._window_passes.accept_(which)

    def _drop_(self, images: Tensor, suspected: Tensor) -> None:
        """Drop the suspected images that the model itself misclassifies; a tie or NaN is suspected as well."""
        keep = self._survivors.drop(images, suspected)
        if keep is not None:
            for name in ("x", "y", "best", "margin", "streams", "_block", "_next"):
                setattr(self, name, getattr(self, name)[keep])
            if self._window_passes is not None:
                self._window_passes.keep_(keep)


def _stretches(queries: int, p_init: float, height: int, width: int, norm: Norm) -> list[tuple[range, int]]:
    """Consecutive queries with windows of the same side and random numbers of the same block; and that side."""
    key = lambda query: (query // BLOCK, _side(query / queries, p_init, height, width, norm))  # noqa: E731
    found = [(list(members), side) for (_, side), members in groupby(range(queries), key)]
    return [(range(members[0], members[-1] + 1), side) for members, side in found]


def _side(progress: float, p_init: float, height: int, width: int, norm: Norm) -> int:
    """The side of the windows, in pixels, once this share of the queries is spent."""
    p = p_init / 2 ** bisect_left(SCHEDULE, int(10_000 * progress))
    side = round(math.sqrt(p * height * width))
    if norm != "linf":
        side = max(side, 3) | 1  # a bump needs a middle
    return min(max(side, 1), height, width)
