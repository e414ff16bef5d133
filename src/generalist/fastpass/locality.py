"""Which nodes of a traced model are local: an output pixel depends on few input pixels."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from generalist.fastpass.tracing import CONVS, NORMS

_MODULES = {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU}
_MODULES |= {nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh}
_IDENTITIES = {nn.Identity, nn.Dropout, nn.Dropout2d}  # in eval mode
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv}
_FUNCTIONS = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg} | _IN_PLACE
_FUNCTIONS |= {torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.relu, torch.sigmoid, torch.tanh}
_FUNCTIONS |= {F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.softplus, F.hardswish, F.hardtanh}
_METHODS = {"add", "sub", "mul", "div", "neg", "relu", "sigmoid", "tanh", "contiguous"}

Pair = tuple[int, ...]
"""Vertical and horizontal."""


@dataclass(frozen=True)
class Span:
    """The part of a feature map that windows reach along one axis.

    For a window at `corner`, it is `side` pixels from `starts[corner]` on. The map has `size` pixels along the axis.
    """

    starts: Tensor
    side: int
    size: int

    def contains(self, other: "Span") -> bool:
        ends = other.starts + other.side <= self.starts + self.side
        return bool((self.starts <= other.starts).all() and ends.all())

    def same(self, other: "Span") -> bool:
        return self.side == other.side and torch.equal(self.starts, other.starts)


@dataclass(frozen=True)
class Sliding:
    """A convolution or a pooling. `apply` takes a map that is padded already; `fill` is the padding value."""

    apply: Callable[[Tensor], Tensor]
    fill: float
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)
    multiplications: int = 0  # per output pixel

    def extent(self, axis: int) -> int:
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def reach(self, span: Span, axis: int, size: int) -> Span:
        """The span of the output pixels that read any pixel of the span; `size` is that of the output map."""
        extent, stride = self.extent(axis), self.stride[axis]
        side = min((span.side + extent - 2) // stride + 1, size)
        first = (span.starts + self.padding[axis] - extent + stride).div(stride, rounding_mode="floor")
        return Span(first.clamp(0, size - side), side, size)

    def slack(self, axis: int, size: int) -> int:
        """How far a span may exceed what its reach reads: pixels that the stride skips."""
        extent, stride, padding = self.extent(axis), self.stride[axis], self.padding[axis]
        unread = (size + 2 * padding - extent) % stride
        return max(0, stride - extent, unread - padding)

    def reads(self, reach: Span, axis: int, source: Span) -> Span:
        """The input pixels that the reach is computed from, extended by the slack."""
        slack = self.slack(axis, source.size)
        starts = reach.starts * self.stride[axis] - self.padding[axis] - slack
        return Span(starts, (reach.side - 1) * self.stride[axis] + self.extent(axis) + 2 * slack, source.size)

    def __call__(self, crop: Tensor, slack: Pair) -> Tensor:
        down, across = slack
        return self.apply(crop[:, :, down : crop.shape[2] - down, across : crop.shape[3] - across])


def without_identities(traced: fx.GraphModule) -> fx.GraphModule:
    """The graph without nodes that return their input, so that every value has one name."""
    for node in list(traced.graph.nodes):
        if type(module_of(node, traced)) in _IDENTITIES and len(node.all_input_nodes) == 1:
            node.replace_all_uses_with(node.all_input_nodes[0])
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


def sliding(node: fx.Node, traced: fx.GraphModule) -> Sliding | None:
    """The convolution or pooling of a node; None if the node is neither, or of a kind that is not supported."""
    m: Any = module_of(node, traced) if len(node.args) == 1 else None
    if type(m) in CONVS and m.padding_mode == "zeros" and not isinstance(m.padding, str):
        convolve = lambda crop: F.conv2d(crop, m.weight, m.bias, m.stride, 0, m.dilation, m.groups)  # noqa: E731
        return Sliding(convolve, 0.0, m.kernel_size, m.stride, m.padding, m.dilation, m.weight.numel())
    if type(m) is nn.MaxPool2d and not m.ceil_mode and not m.return_indices:
        pool = lambda crop: F.max_pool2d(crop, m.kernel_size, m.stride, 0, m.dilation)  # noqa: E731
        return Sliding(pool, -torch.inf, _pair(m.kernel_size), _pair(m.stride), _pair(m.padding), _pair(m.dilation))
    if type(m) is nn.AvgPool2d and not m.ceil_mode and (m.count_include_pad or not m.padding):
        pool = lambda crop: F.avg_pool2d(crop, m.kernel_size, m.stride, 0, False, True, m.divisor_override)  # noqa: E731
        return Sliding(pool, 0.0, _pair(m.kernel_size), _pair(m.stride), _pair(m.padding))
    return None


def pointwise(node: fx.Node, traced: fx.GraphModule) -> Callable[..., Tensor] | None:
    """The function that a node applies to each pixel separately; None if it does something else."""
    if any(isinstance(value, fx.Node) for value in node.kwargs.values()):
        return None
    module = module_of(node, traced)
    if type(module) in _MODULES or (type(module) in NORMS and module.running_mean is not None):
        return module
    if node.op == "call_function" and node.target in _FUNCTIONS:
        return cast(Callable[..., Tensor], node.target)
    if node.op == "call_method" and node.target in _METHODS:
        return cast(Callable[..., Tensor], getattr(Tensor, str(node.target)))
    return None


def overwrites(traced: fx.GraphModule) -> bool:
    """Whether a value that several nodes read is changed in place: patches are not computed in the model's order."""
    return any(_in_place(node, traced) and len(node.all_input_nodes[0].users) > 1 for node in traced.graph.nodes)


def _in_place(node: fx.Node, traced: fx.GraphModule) -> bool:
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    by_name = str(name).endswith("_")
    asked_to = node.kwargs.get("inplace", False) or getattr(module_of(node, traced), "inplace", False)
    return node.target in _IN_PLACE or by_name or bool(asked_to)


def fill_around(node: fx.Node, traced: fx.GraphModule) -> float:
    """The padding value around the maps of a node: zero, or −inf if a padded max-pooling reads them."""
    padded = [found for user in node.users if (found := sliding(user, traced)) and max(found.padding)]
    return min((found.fill for found in padded), default=0.0)


def module_of(node: fx.Node, traced: fx.GraphModule) -> Any:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def attribute(traced: fx.GraphModule, node: fx.Node) -> Tensor:
    module, _, name = str(node.target).rpartition(".")
    return cast(Tensor, getattr(traced.get_submodule(module), name))


def _pair(size: int | Pair) -> Pair:
    return size if isinstance(size, tuple) else (size, size)
