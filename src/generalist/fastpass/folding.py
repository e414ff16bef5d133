"""BatchNorm folded into the convolution before it, for the many passes of an attack through frozen weights.

The result is a *shadow*: a copy of the model's structure that shares all tensors except those of the folded
convolutions. It is always in eval mode and computes no weight gradients. Gradients in the input are those of the model.
As the weights are fixed during an attack, folded convolutions of small maps use Winograd's algorithm (`winograd`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from generalist.fastpass.tracing import CONVS, NORMS, Root, Tracer, has_hooks
from generalist.fastpass.winograd import WinogradConv2d
from generalist.models.attributes import attributes

_PAIRS = "_folded_pairs"  # attribute of a shadow: the names of its (convolution, BatchNorm) pairs

_Signature = tuple[Any, ...]
_shadows: WeakKeyDictionary[nn.Module, tuple[_Signature, nn.Module | None]] = WeakKeyDictionary()


def folded(model: nn.Module) -> nn.Module:
    """The shadow of a model, up to date; the model itself where it cannot be folded.

    A model is traced once. Later calls only refresh its shadow, unless the structure of the model has changed.
    """
    if has_hooks(model):
        return model
    signature = _signature(model)
    known = _shadows.get(model)
    if known is None or known[0] != signature:
        shadow = fold_batchnorm(model)
        _shadows[model] = (signature, shadow)
    else:
        shadow = known[1]
        if shadow is not None:
            refresh_(shadow, model)
    return model if shadow is None else shadow


@torch.inference_mode(False)  # a tensor made in inference mode can never carry a gradient
@torch.no_grad()
def fold_batchnorm(model: nn.Module) -> nn.Module | None:
    """A new shadow of the model; None where nothing folds, or where folding might change what the model computes."""
    if has_hooks(model):
        return None
    try:
        shadow = _shadow_of(model)
        root = Root(shadow)
        pairs = _pairs(root)
        if not pairs:
            return None
        for conv, norm in pairs:
            _fuse(root, conv, norm)
        Tracer().trace(root)  # fails if the model reads an attribute of a removed BatchNorm
        vars(shadow)[_PAIRS] = [(conv.removeprefix("model."), norm.removeprefix("model.")) for conv, norm in pairs]
        refresh_(shadow, model)
    except Exception:
        # Models may be anything, and copying or tracing them may fail in any way.
        return None
    return shadow


@torch.inference_mode(False)
@torch.no_grad()
def refresh_(shadow: nn.Module, model: nn.Module) -> None:
    """Bring a shadow up to date with its model, in place."""
    pairs = vars(shadow)[_PAIRS]
    own = {id(tensor) for conv, _ in pairs for tensor in shadow.get_submodule(conv).parameters()}
    current = dict(_tensors(model))
    for name, tensor in _tensors(shadow):
        if id(tensor) not in own:  # by identity: a tensor may have several names
            tensor.data = current[name].data  # also right if the model's tensors were replaced rather than written to
    for conv_name, norm_name in pairs:
        _refold_(shadow.get_submodule(conv_name), model.get_submodule(conv_name), model.get_submodule(norm_name))


def forget_transforms(shadow: nn.Module) -> None:
    """Free the transformed weights of a shadow; the next refresh would make them invalid anyway."""
    for module in shadow.modules():
        if isinstance(module, WinogradConv2d):
            module.forget_()


def _refold_(fused: Any, conv: Any, norm: Any) -> None:
    """Fold in place: weight ← weight·γ/√(σ²+e), bias ← (bias − μ)·γ/√(σ²+e) + β."""
    wide = torch.promote_types(norm.running_var.dtype, torch.float32)  # as BatchNorm does for half precision
    scale = (norm.running_var.to(wide) + norm.eps).rsqrt_()
    if norm.weight is not None:
        scale *= norm.weight
    shift = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
    shift = shift * scale if norm.bias is None else torch.addcmul(norm.bias.to(wide), shift.to(wide), scale)
    torch.mul(conv.weight, scale.view(-1, 1, 1, 1), out=fused.weight)
    fused.bias.copy_(shift)


def _shadow_of(model: nn.Module) -> nn.Module:
    """A copy of the structure in eval mode whose tensors share memory with the model's."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo.update({id(value): value.detach() for value in vars(module).values() if isinstance(value, Tensor)})
    memo.update({id(buffer): buffer.detach() for buffer in model.buffers()})
    memo.update({id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()})
    return deepcopy(model, memo).eval()


def _pairs(root: nn.Module) -> list[tuple[str, str]]:
    """The names of (convolution, BatchNorm) pairs where the BatchNorm alone reads the convolution.

    None at all where a convolution or BatchNorm is used in two places.
    """
    graph = Tracer().trace(root)
    called = [node for node in graph.nodes if node.op == "call_module"]
    # Where the model reads a weight directly, it expects the unfolded one, so the module has to stay.
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    module: Callable[[fx.Node], nn.Module] = lambda node: root.get_submodule(str(node.target))  # noqa: E731
    uses = Counter(id(module(node)) for node in called if type(module(node)) in CONVS + NORMS)
    if any(count > 1 for count in uses.values()):
        return []
    pairs = []
    for node in called:
        source = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) != 1:
            continue
        conv, norm = module(source), module(node)
        if type(conv) not in CONVS or type(norm) not in NORMS or {source.target, node.target} & read:
            continue
        if getattr(norm, "running_mean", None) is None or getattr(norm, "running_var", None) is None:
            continue  # without running statistics it normalises by the batch, even in eval mode
        pairs.append((str(source.target), str(node.target)))
    return pairs


def _fuse(root: nn.Module, conv_name: str, norm_name: str) -> None:
    """Give the convolution its own weight and bias, and replace the BatchNorm by an identity wherever it occurs."""
    conv, norm = root.get_submodule(conv_name), root.get_submodule(norm_name)
    assert isinstance(conv, nn.Conv2d)
    weight = conv.weight.detach()
    conv.weight = nn.Parameter(torch.empty_like(weight), requires_grad=False)
    conv.bias = nn.Parameter(weight.new_empty(conv.out_channels), requires_grad=False)
    faster = WinogradConv2d(conv) if WinogradConv2d.suits(conv) else conv
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):  # unlike named_children, this lists every alias
            if child is norm:
                parent._modules[name] = nn.Identity().eval()
            if child is conv:
                parent._modules[name] = faster


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))


def _signature(model: nn.Module) -> _Signature:
    """What a refresh cannot follow: the modules, their attributes, and the dtype, device and layout of each tensor.

    If it changes, a new shadow is made. An attribute that cannot be compared counts as changed every time.
    """
    kinds = [(name, t.dtype, t.device, t.shape, t.stride()) for name, t in _tensors(model)]
    return (list(attributes(model)), kinds)
