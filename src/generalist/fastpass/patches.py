"""Forward passes of images that differ from known ones in one small window each.

Convolutions are local: in a feature map, a window reaches itself and a rim around it. Only this *patch* of each map is
computed; the rest is taken from the maps of the known images. The reach grows from layer to layer. Where it covers most
of a map, the patch is copied into the whole map, and the rest of the network, the *tail*, runs as usual.
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

MOST_OF_A_MAP = 0.7  # a patch larger than this share of its map is not faster than the whole map
WORTHWHILE = 1e6, 0.1  # least multiplications to save per image, and their least share: copying patches costs time too
SAME = 1e-4  # largest difference to the model's own logits, as a share of the largest logit


class Patchable:
    """A model whose passes can be restricted to patches."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        root, self._model = Root(model).eval(), model
        self._traced = without_identities(fx.GraphModule(root, Tracer().trace(root)))
        self._shapes: dict[fx.Node, torch.Size] = {}
        self._contiguous: set[fx.Node] = set()
        logits = _Recorder(self._traced, self._record_).run(x)
        # A graph repeats what the model did once. A model that draws random numbers or counts its calls differs.
        self._faithful = _alike(logits, model(x))

    @classmethod
    def of(cls, model: nn.Module, x: Tensor) -> Self | None:
        """The model traced, or None if it cannot be; x [B, C, H, W] is a batch like those that will come."""
        if has_hooks(model) or any(module.training for module in model.modules()):
            return None
        try:
            traced = cls(model, x[:1])
        except Exception:
            # Models may be anything, and tracing them may fail in any way.
            return None
        return traced if traced._faithful and not overwrites(traced._traced) else None

    def around(self, x: Tensor, side: int) -> "WindowPasses | None":
        """Passes for windows of this side in these images; None where they would hardly be faster, or differ."""
        plan = _Plan(self._traced, self._shapes, self._contiguous, side)
        if plan.saved < max(WORTHWHILE[0], WORTHWHILE[1] * plan.all):
            return None
        patches = WindowPasses(plan, x)
        return patches if self._agrees(patches, x, side) else None

    def _record_(self, node: fx.Node, value: Tensor) -> None:
        self._shapes[node] = value.shape
        if value.is_contiguous():
            self._contiguous.add(node)

    def _agrees(self, patches: "WindowPasses", x: Tensor, side: int) -> bool:
        """Whether the logits are right for one changed window: some in-place changes do not show in the graph."""
        rows, changed = torch.arange(len(x)), x.clone()
        changed[:, :, :side, :side] = (changed[:, :, :side, :side] + 0.5) % 1
        return _alike(patches(changed, rows, torch.zeros(len(x), 2, dtype=torch.long)), self._model(changed))


class WindowPasses:
    """Passes of images that differ in one window from known images, whose feature maps are kept."""

    def __init__(self, plan: "_Plan", x: Tensor) -> None:
        self._plan = plan
        self._maps: dict[fx.Node, Tensor] = {}  # [B, H, W, C], with a margin all around
        _Recorder(plan.traced, self._remember_).run(x)
        self._patches: dict[fx.Node, Tensor] = {}
        self._from = torch.arange(0)

    def __call__(self, images: Tensor, rows: Tensor, corners: Tensor) -> Tensor:
        """Logits of images that differ from known ones in one window each.

        Args:
            images: [n, C, H, W].
            rows: Which known image each one differs from, [n].
            corners: Upper left corners of the windows, [n, 2].

        Returns:
            Logits [n, K].
        """
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
            Tensor, self._plan.tail(*(self._plan.in_model_layout(crop, read(crop)) for crop in self._plan.handed_over))
        )

    def accept_(self, which: Tensor) -> None:
        """Replace known images by images of the last call.

        Args:
            which: Indices into the images of the last call, [k], no two of the same row.
        """
        first = self._from.index_select(0, which)
        for node, maps in self._maps.items():
            place = self._plan.places[node]
            place.write_(maps, self._patches[node], which, first[:, place.number])

    def keep_(self, rows: Tensor) -> None:
        """Keep only these known images.

        Args:
            rows: Indices [k] or a boolean mask over the known images.
        """
        self._maps = {node: maps[rows] for node, maps in self._maps.items()}

    def _remember_(self, node: fx.Node, value: Tensor) -> None:
        if node in self._plan.places:
            padded = F.pad(value, [self._plan.margin] * 4, value=fill_around(node, self._plan.traced))
            self._maps[node] = padded.permute(0, 2, 3, 1).contiguous()


class _Recorder(fx.Interpreter):
    """Runs a traced model and calls `record` with every node and its tensor."""

    def __init__(self, traced: fx.GraphModule, record: Callable[[fx.Node, Tensor], None]) -> None:
        super().__init__(traced)
        self._record = record

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op != "output":
            self._record(n, value)
        return value


_Reach = tuple[Span, ...]
"""Vertical and horizontal."""
Read = Callable[["_Crop"], Tensor]


class _Crop:
    """A part of the maps of a node, with the patch copied over it.

    Maps and crops are stored channels-last, so a line of either is contiguous and is addressed by its first pixel.
    """

    def __init__(self, number: int, source: fx.Node, reach: _Reach, part: _Reach, margin: int) -> None:
        self.number, self.source, self.part, self.readers = number, source, part, 0
        self.is_reach = _same(reach, part)
        (rows, columns), (down, across) = part, reach
        self._height, self._width, self._patch_width = rows.side, columns.side, across.side
        width = columns.size + 2 * margin
        self.area, self.map_area = rows.side * columns.side, (rows.size + 2 * margin) * width
        # Offsets by corner: of the first pixel of the crop in its map, and of the first pixel of the patch in the crop.
        self.rows, self.columns = (rows.starts + margin) * width, columns.starts + margin
        self.over_rows, self.over_columns = (down.starts - rows.starts) * columns.side, across.starts - columns.starts
        self._lines, self._over_lines = torch.arange(rows.side) * width, torch.arange(down.side) * columns.side

    def cut(self, maps: Tensor, patch: Tensor, first: Tensor, over: Tensor) -> Tensor:
        """[n, C, height, width] from offset `first` [n] on, with the patch copied to offset `over` [n]."""
        crop = _overlapping_lines(maps, self._width).index_select(0, _outer_sum(first, self._lines))
        lines = _overlapping_lines(crop.view(-1, maps.shape[3]), self._patch_width)
        lines.index_copy_(0, _outer_sum(over, self._over_lines), _lines(patch))
        return crop.view(len(patch), self._height, self._width, -1).permute(0, 3, 1, 2)

    def write_(self, maps: Tensor, patch: Tensor, which: Tensor, first: Tensor) -> None:
        """Write the patches `which` [k] into the maps, from offset `first` [k] on."""
        lines = _overlapping_lines(maps, self._width)
        taken = patch.permute(0, 2, 3, 1).index_select(0, which)
        lines.index_copy_(0, _outer_sum(first, self._lines), taken.view(-1, lines.shape[1]))


class _Plan:
    """Which nodes are computed in patches for windows of one side, and how."""

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
        """Offsets [n, crops] of the first pixel of every crop in its maps, and of every patch in its crop."""
        down, across, over_down, over_across, map_areas, areas = self._tables
        first = down[corners[:, 0]] + across[corners[:, 1]] + rows[:, None] * map_areas
        count = torch.arange(len(rows))[:, None]
        return first, over_down[corners[:, 0]] + over_across[corners[:, 1]] + count * areas

    def window(self, images: Tensor, corners: Tensor) -> Tensor:
        """The windows [n, C, side, side] of the images."""
        (down, across), (count, channels) = self._reach[self.input], images.shape[:2]
        cells = _outer_sum(corners[:, 0] * across.size + corners[:, 1], torch.arange(down.side) * across.size)
        cells = _outer_sum(cells, torch.arange(across.side)).view(count, 1, -1).expand(-1, channels, -1)
        return images.flatten(2).gather(2, cells).view(count, channels, down.side, across.side)

    def in_model_layout(self, crop: _Crop, maps: Tensor) -> Tensor:
        """The maps in the memory layout of the model: some code can only `view` contiguous tensors."""
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
        """Whether an argument of a pointwise function can be cropped to the reach."""
        if not isinstance(given, fx.Node):
            return not isinstance(given, (list, tuple))  # these may contain nodes
        if given in self._reach:
            inside = all(whole.contains(part) for whole, part in zip(reach, self._reach[given], strict=True))
            return inside and self._shapes[given] == self._shapes[node]
        return given.op == "get_attr" and all(size == 1 for size in self._shapes[given][-2:])  # one number per channel

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
        """The crop that a step reads; the maps of its source are kept if the patch alone is not enough."""
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
        """Make the tail: a graph of its own, called with the whole maps of the nodes it reads."""
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


def _outer_sum(first: Tensor, offsets: Tensor) -> Tensor:
    return (first[:, None] + offsets).flatten()


def _overlapping_lines(pixels: Tensor, length: int) -> Tensor:
    """A view of pixels [..., C] as overlapping lines: entry i is pixel i and those after it, [·, length · C]."""
    channels = pixels.shape[-1]
    count = pixels.numel() // channels
    return pixels.as_strided((count - length + 1, length * channels), (channels, 1))


def _lines(patch: Tensor) -> Tensor:
    """The lines of patches: [n, C, h, w] → [n·h, w·C]."""
    return patch.permute(0, 2, 3, 1).reshape(-1, patch.shape[3] * patch.shape[1])
