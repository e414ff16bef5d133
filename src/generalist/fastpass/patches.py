"""A forward pass through images that differ from known ones in one small window each.

Convolutions are local: what a window can reach in a feature map is the window and a rim. So only that *patch* of each
map is computed, over the maps of the known images. The reach grows from layer to layer; where it covers most of a map,
the patch is laid into the whole map and the rest of the network, the tail, runs as always.
"""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from generalist.fastpass.locality import (
    Sliding,
    Span,
    attribute,
    fill_around,
    overwrites,
    pointwise,
    sliding,
    without_identities,
)
from generalist.fastpass.tracing import Root, Tracer, has_hooks

MOST_OF_A_MAP = 0.7  # the share of a map from which on the whole of it is as fast
WORTHWHILE = 1e6, 0.1  # multiplications an image to be saved, and their share: cutting out and laying in takes time too
SAME = 1e-4  # how far logits may be from the model's own, as a share of the largest


class Patchable:
    """A model that can be run in patches."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        root, self._model = Root(model).eval(), model
        self._traced = without_identities(fx.GraphModule(root, Tracer().trace(root)))
        self._shapes: dict[fx.Node, torch.Size] = {}
        self._contiguous: set[fx.Node] = set()
        logits = _Notes(self._traced, self._note_).run(x)
        # What draws random numbers, or counts its calls, was traced as it was once.
        self._faithful = _alike(logits, model(x))

    @classmethod
    def of(cls, model: nn.Module, x: Tensor) -> Self | None:
        """The model, if its code can be traced; x is a batch like those that will come."""
        if has_hooks(model) or any(module.training for module in model.modules()):
            return None
        try:
            traced = cls(model, x[:1])
        except Exception:
            # Any model at all may come here, and what cannot be traced fails in any way at all.
            return None
        return traced if traced._faithful and not overwrites(traced._traced) else None

    def around(self, x: Tensor, side: int) -> "WindowPasses | None":
        """Ready for windows of this side in these images; None where that would hardly be faster."""
        plan = _Plan(self._traced, self._shapes, self._contiguous, side)
        if plan.saved < max(WORTHWHILE[0], WORTHWHILE[1] * plan.all):
            return None
        patches = WindowPasses(plan, x)
        return patches if self._stand_a_test(patches, x, side) else None

    def _note_(self, node: fx.Node, value: Tensor) -> None:
        self._shapes[node] = value.shape
        if value.is_contiguous():
            self._contiguous.add(node)

    def _stand_a_test(self, patches: "WindowPasses", x: Tensor, side: int) -> bool:
        """What the model changes in place under another name does not show in its graph, but here."""
        rows, changed = torch.arange(len(x)), x.clone()
        changed[:, :, :side, :side] = (changed[:, :, :side, :side] + 0.5) % 1
        return _alike(patches(changed, rows, torch.zeros(len(x), 2, dtype=torch.long)), self._model(changed))


class WindowPasses:
    """Known images, and the maps that a model made of them."""

    def __init__(self, plan: "_Plan", x: Tensor) -> None:
        self._plan = plan
        self._maps: dict[fx.Node, Tensor] = {}  # [B, H, W, C], with a margin all around
        _Notes(plan.traced, self._remember_).run(x)
        self._patches: dict[fx.Node, Tensor] = {}
        self._from = torch.arange(0)

    def __call__(self, images: Tensor, rows: Tensor, corners: Tensor) -> Tensor:
        """Logits of images [n, C, H, W] that differ from the known ones, rows [n], in windows at corners [n, 2]."""
        self._from, over = self._plan.find(rows, corners)
        self._patches = patches = {self._plan.input: self._plan.window(images, corners)}
        cuts: dict[int, Tensor] = {}

        def read(crop: _Crop) -> Tensor:
            patch, number = patches[crop.source], crop.number
            if crop.is_reach:
                return patch
            if number not in cuts:
                cuts[number] = crop.cut(self._maps[crop.source], patch, self._from[:, number], over[:, number])
            return cuts[number] if crop.readers > 1 else cuts.pop(number)

        for node, step in self._plan.steps:
            patches[node] = step(read)
        return cast(
            Tensor, self._plan.tail(*(self._plan.laid_out(crop, read(crop)) for crop in self._plan.handed_over))
        )

    def accept_(self, which: Tensor) -> None:
        """These images of the last call [k], no two of the same row, are the known ones of their rows from now on."""
        first = self._from.index_select(0, which)
        for node, maps in self._maps.items():
            place = self._plan.places[node]
            place.write_(maps, self._patches[node], which, first[:, place.number])

    def keep_(self, rows: Tensor) -> None:
        """Forget all but these known images."""
        self._maps = {node: maps[rows] for node, maps in self._maps.items()}

    def _remember_(self, node: fx.Node, value: Tensor) -> None:
        if node in self._plan.places:
            padded = F.pad(value, [self._plan.margin] * 4, value=fill_around(node, self._plan.traced))
            self._maps[node] = padded.permute(0, 2, 3, 1).contiguous()


class _Notes(fx.Interpreter):
    """Runs a traced model and shows every tensor on the way."""

    def __init__(self, traced: fx.GraphModule, note: Callable[[fx.Node, Tensor], None]) -> None:
        super().__init__(traced)
        self._note = note

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op != "output":
            self._note(n, value)
        return value


_Reach = tuple[Span, ...]
"""Down and across."""
Read = Callable[["_Crop"], Tensor]


class _Crop:
    """A part of the maps of a node, with what changed in them laid over.

    Maps and crops lie in memory pixel by pixel, so a line of either is one piece, known by its first pixel.
    """

    def __init__(self, number: int, source: fx.Node, reach: _Reach, part: _Reach, margin: int) -> None:
        self.number, self.source, self.part, self.readers = number, source, part, 0
        self.is_reach = _same(reach, part)
        (rows, columns), (down, across) = part, reach
        self._height, self._width, self._patch_width = rows.side, columns.side, across.side
        width = columns.size + 2 * margin
        self.area, self.map_area = rows.side * columns.side, (rows.size + 2 * margin) * width
        # Of a crop's first pixel in its map, and of the patch's first pixel in the crop, for each corner.
        self.rows, self.columns = (rows.starts + margin) * width, columns.starts + margin
        self.over_rows, self.over_columns = (down.starts - rows.starts) * columns.side, across.starts - columns.starts
        self._lines, self._over_lines = torch.arange(rows.side) * width, torch.arange(down.side) * columns.side

    def cut(self, maps: Tensor, patch: Tensor, first: Tensor, over: Tensor) -> Tensor:
        """[n, C, height, width] from `first` [n] on, with the patch laid from `over` [n] on."""
        crop = _in_lines(maps, self._width).index_select(0, _all_of(first, self._lines))
        lines = _in_lines(crop.view(-1, maps.shape[3]), self._patch_width)
        lines.index_copy_(0, _all_of(over, self._over_lines), _lines(patch))
        return crop.view(len(patch), self._height, self._width, -1).permute(0, 3, 1, 2)

    def write_(self, maps: Tensor, patch: Tensor, which: Tensor, first: Tensor) -> None:
        """These patches [k], from `first` [k] on."""
        lines = _in_lines(maps, self._width)
        taken = patch.permute(0, 2, 3, 1).index_select(0, which)
        lines.index_copy_(0, _all_of(first, self._lines), taken.view(-1, lines.shape[1]))


class _Plan:
    """Which nodes are done in patches, for windows of one side, and how."""

    def __init__(
        self, traced: fx.GraphModule, shapes: dict[fx.Node, torch.Size], contiguous: set[fx.Node], side: int
    ) -> None:
        self.traced, self._shapes, self._contiguous = traced, shapes, contiguous
        self.input = next(node for node in traced.graph.nodes if node.op == "placeholder")
        self._reach: dict[fx.Node, _Reach] = {}
        height, width = shapes[self.input][2:]
        self._reach[self.input] = tuple(Span(torch.arange(n - side + 1), side, n) for n in (height, width))
        slidings = {node: found for node in traced.graph.nodes if (found := sliding(node, traced))}
        self.margin = max([0, *(self._needed(node, found) for node, found in slidings.items())])
        self.steps: list[tuple[fx.Node, Callable[[Read], Tensor]]] = []
        self.places: dict[fx.Node, _Crop] = {}
        self._crops: list[_Crop] = []
        self.saved = 0
        self.all = sum(found.multiplications * shapes[node][2:].numel() for node, found in slidings.items())
        for node in traced.graph.nodes:
            step = self._slide(node, slidings[node]) if node in slidings else self._point(node)
            if step is not None:
                self.steps.append((node, step))
        self._cut_()
        stacked = [[getattr(c, name) for c in self._crops] for name in ("rows", "columns", "over_rows", "over_columns")]
        self._tables = [torch.stack(part, 1) for part in stacked]
        self._tables += [torch.tensor([getattr(c, name) for c in self._crops]) for name in ("map_area", "area")]

    def find(self, rows: Tensor, corners: Tensor) -> tuple[Tensor, Tensor]:
        """The first pixel [n, crops] of every crop in its maps, and of every patch in its crop."""
        down, across, over_down, over_across, map_areas, areas = self._tables
        first = down[corners[:, 0]] + across[corners[:, 1]] + rows[:, None] * map_areas
        count = torch.arange(len(rows))[:, None]
        return first, over_down[corners[:, 0]] + over_across[corners[:, 1]] + count * areas

    def window(self, images: Tensor, corners: Tensor) -> Tensor:
        """The windows [n, C, side, side] of the images."""
        (down, across), (count, channels) = self._reach[self.input], images.shape[:2]
        cells = _all_of(corners[:, 0] * across.size + corners[:, 1], torch.arange(down.side) * across.size)
        cells = _all_of(cells, torch.arange(across.side)).view(count, 1, -1).expand(-1, channels, -1)
        return images.flatten(2).gather(2, cells).view(count, channels, down.side, across.side)

    def laid_out(self, crop: _Crop, maps: Tensor) -> Tensor:
        """As the model has them in memory: some code can view only what is contiguous."""
        return maps.contiguous() if crop.source in self._contiguous else maps

    def _needed(self, node: fx.Node, sliding: Sliding) -> int:
        sizes = self._shapes[cast(fx.Node, node.args[0])][2:]
        return max(sliding.padding[axis] + sliding.slack(axis, size) for axis, size in enumerate(sizes))

    def _slide(self, node: fx.Node, sliding: Sliding) -> Callable[[Read], Tensor] | None:
        source = cast(fx.Node, node.args[0])
        padded = max(sliding.padding) and sliding.fill != fill_around(source, self.traced)
        if source not in self._reach or padded:
            return None
        spans, sizes = self._reach[source], self._shapes[node][2:]
        reach = tuple(sliding.reach(span, axis, sizes[axis]) for axis, span in enumerate(spans))
        if not self._accept_(node, reach):
            return None
        self.saved += sliding.multiplications * (sizes.numel() - _area(reach))
        crop = self._crop(source, tuple(sliding.reads(reach[axis], axis, spans[axis]) for axis in (0, 1)))
        slack = tuple(sliding.slack(axis, span.size) for axis, span in enumerate(spans))
        return lambda read: sliding(read(crop), slack)

    def _point(self, node: fx.Node) -> Callable[[Read], Tensor] | None:
        function = pointwise(node, self.traced)
        sources = [source for source in node.all_input_nodes if source in self._reach]
        if function is None or not sources:
            return None
        reach = max((self._reach[source] for source in sources), key=_area)
        if not all(self._fits(given, node, reach) for given in node.args) or not self._accept_(node, reach):
            return None
        arguments = [self._argument(given, reach) for given in node.args]
        return lambda read: function(*(read(a) if isinstance(a, _Crop) else a for a in arguments), **node.kwargs)

    def _fits(self, given: Any, node: fx.Node, reach: _Reach) -> bool:
        """Whether an argument of a pointwise function can be cut down to the reach."""
        if not isinstance(given, fx.Node):
            return not isinstance(given, (list, tuple))  # which may have nodes in them
        if given in self._reach:
            inside = all(whole.contains(part) for whole, part in zip(reach, self._reach[given], strict=True))
            return inside and self._shapes[given] == self._shapes[node]
        return given.op == "get_attr" and all(size == 1 for size in self._shapes[given][-2:])  # one number a channel

    def _argument(self, given: Any, reach: _Reach) -> Any:
        if not isinstance(given, fx.Node):
            return given
        return self._crop(given, reach) if given in self._reach else attribute(self.traced, given)

    def _accept_(self, node: fx.Node, reach: _Reach) -> bool:
        small = _area(reach) <= MOST_OF_A_MAP * self._shapes[node][2:].numel()
        if small:
            self._reach[node] = reach
        return small

    def _crop(self, source: fx.Node, part: _Reach) -> _Crop:
        """What a step reads; the maps of its source are kept if the patch alone is not enough."""
        crop = self._number(source, part)
        crop.readers += 1
        if not crop.is_reach and source not in self.places:
            self.places[source] = self._number(source, self._reach[source])
        return crop

    def _number(self, source: fx.Node, part: _Reach) -> _Crop:
        for known in self._crops:
            if known.source is source and _same(known.part, part):
                return known
        self._crops.append(_Crop(len(self._crops), source, self._reach[source], part, self.margin))
        return self._crops[-1]

    def _cut_(self) -> None:
        """The tail: a graph of its own, which is handed the whole maps of the nodes it reads."""
        tail, copies = fx.Graph(), {}
        self.handed_over = []
        for node, reach in self._reach.items():
            if any(user not in self._reach for user in node.users):
                copies[node] = tail.placeholder(node.name)
                whole = tuple(Span(torch.zeros_like(span.starts), span.size, span.size) for span in reach)
                self.handed_over.append(self._crop(node, whole))
        for node in self.traced.graph.nodes:
            if node not in self._reach:
                copies[node] = tail.node_copy(node, copies.__getitem__)
        self.tail = fx.GraphModule(self.traced, tail)


def _alike(logits: Tensor, expected: Tensor) -> bool:
    return bool((logits - expected).abs().max() <= SAME * expected.abs().max())


def _same(one: _Reach, other: _Reach) -> bool:
    return all(a.same(b) for a, b in zip(one, other, strict=True))


def _area(reach: _Reach) -> int:
    return reach[0].side * reach[1].side


def _all_of(first: Tensor, offsets: Tensor) -> Tensor:
    return (first[:, None] + offsets).flatten()


def _in_lines(pixels: Tensor, length: int) -> Tensor:
    """A view of pixels [..., C], one after the other: whatever `length` of them follow each, [·, length · C]."""
    channels = pixels.shape[-1]
    count = pixels.numel() // channels
    return pixels.as_strided((count - length + 1, length * channels), (channels, 1))


def _lines(patch: Tensor) -> Tensor:
    """[n, C, h, w] → [n·h, w·C]"""
    return patch.permute(0, 2, 3, 1).reshape(-1, patch.shape[3] * patch.shape[1])
