"""BatchNorm folded into the convolution before it, for the many passes of an attack through frozen weights.

The weights being fixed for a while, convolutions of small maps take a shorter way (`winograd`).

The fold is a *shadow*: a copy of the model's structure that shares its tensors, but for the folded convolutions. The
shadow is always in eval mode and asks for no weight gradient; gradients for the input flow as they do in the model.
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

_PAIRS = "_folded_pairs"  # the attribute of a shadow that names its (convolution, BatchNorm) pairs

_Mark = tuple[Any, ...]
_shadows: WeakKeyDictionary[nn.Module, tuple[_Mark, nn.Module | None]] = WeakKeyDictionary()


def folded(model: nn.Module) -> nn.Module:
    """The up-to-date shadow of a model, traced once; the model itself, in the mode it is in, where it cannot fold."""
    if has_hooks(model):
        return model
    mark = _mark(model)
    known = _shadows.get(model)
    if known is None or known[0] != mark:
        shadow = fold_batchnorm(model)
        _shadows[model] = (mark, shadow)
    else:
        shadow = known[1]
        if shadow is not None:
            refresh_(shadow, model)
    return model if shadow is None else shadow


@torch.inference_mode(False)  # what is made inside inference mode could never carry a gradient
@torch.no_grad()
def fold_batchnorm(model: nn.Module) -> nn.Module | None:
    """A shadow of the model, or None where nothing folds or it is not certain that folding changes nothing."""
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
        Tracer().trace(root)  # code that reads an attribute of the BatchNorm that is gone shows here
        vars(shadow)[_PAIRS] = [(conv.removeprefix("model."), norm.removeprefix("model.")) for conv, norm in pairs]
        refresh_(shadow, model)
    except Exception:
        # Any model at all may come here, and what cannot be copied or traced fails in any way at all.
        return None
    return shadow


@torch.inference_mode(False)
@torch.no_grad()
def refresh_(shadow: nn.Module, model: nn.Module) -> None:
    """Bring a shadow up to date with its model, in place."""
    pairs = vars(shadow)[_PAIRS]
    own = {id(tensor) for conv, _ in pairs for tensor in shadow.get_submodule(conv).parameters()}
    live = dict(_tensors(model))
    for name, tensor in _tensors(shadow):
        if id(tensor) not in own:  # under whatever name
            tensor.data = live[name].data  # follows a model whose tensors were replaced rather than written to
    for conv_name, norm_name in pairs:
        _refold_(shadow.get_submodule(conv_name), model.get_submodule(conv_name), model.get_submodule(norm_name))


def forget_transforms(shadow: nn.Module) -> None:
    """Memory that the next refreshed shadow could not use anyway."""
    for module in shadow.modules():
        if isinstance(module, WinogradConv2d):
            module.forget_()


def _refold_(fused: Any, conv: Any, norm: Any) -> None:
    """One convolution doing the work of two modules: weight·γ/√(σ²+e), (bias − μ)·γ/√(σ²+e) + β."""
    wide = torch.promote_types(norm.running_var.dtype, torch.float32)  # as BatchNorm computes in half precision
    scale = (norm.running_var.to(wide) + norm.eps).rsqrt_()
    if norm.weight is not None:
        scale *= norm.weight
    shift = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
    shift = shift * scale if norm.bias is None else torch.addcmul(norm.bias.to(wide), shift.to(wide), scale)
    torch.mul(conv.weight, scale.view(-1, 1, 1, 1), out=fused.weight)
    fused.bias.copy_(shift)


def _shadow_of(model: nn.Module) -> nn.Module:
    """A copy of the structure, in eval mode, over the very memory of the model's tensors."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo.update({id(value): value.detach() for value in vars(module).values() if isinstance(value, Tensor)})
    memo.update({id(buffer): buffer.detach() for buffer in model.buffers()})
    memo.update({id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()})
    return deepcopy(model, memo).eval()


def _pairs(root: nn.Module) -> list[tuple[str, str]]:
    """The names of convolutions read by one BatchNorm alone; none where such a module is used in two places."""
    graph = Tracer().trace(root)
    called = [node for node in graph.nodes if node.op == "call_module"]
    # A weight that is read on its own is read unfolded, so its module has to stay.
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
            continue  # without running statistics it normalises by the batch, in eval mode too
        pairs.append((str(source.target), str(node.target)))
    return pairs


def _fuse(root: nn.Module, conv_name: str, norm_name: str) -> None:
    """Give the convolution tensors of its own, a bias among them, and put an identity wherever the BatchNorm is."""
    conv, norm = root.get_submodule(conv_name), root.get_submodule(norm_name)
    assert isinstance(conv, nn.Conv2d)
    weight = conv.weight.detach()
    conv.weight = nn.Parameter(torch.empty_like(weight), requires_grad=False)
    conv.bias = nn.Parameter(weight.new_empty(conv.out_channels), requires_grad=False)
    faster = WinogradConv2d(conv) if WinogradConv2d.suits(conv) else conv
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):  # which, unlike named_children, has every alias
            if child is norm:
                parent._modules[name] = nn.Identity().eval()
            if child is conv:
                parent._modules[name] = faster


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))


def _mark(model: nn.Module) -> _Mark:
    """What a shadow cannot follow: the modules, their attributes, and the kind of each tensor.

    An attribute that cannot be compared makes every mark another one, and so every shadow a new one.
    """
    kinds = [(name, t.dtype, t.device, t.shape, t.stride()) for name, t in _tensors(model)]
    return (list(attributes(model)), kinds)
