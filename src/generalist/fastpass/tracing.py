"""A model as a graph of modules and functions."""

from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from generalist.distributed.shared_batchnorm import SharedBatchNorm
from generalist.fastpass.winograd import WinogradConv2d

# Exact types: a subclass may compute something else.
CONVS = (nn.Conv2d, WinogradConv2d)
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, SharedBatchNorm)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Root(nn.Module):
    """Calls a model with one argument, so that tracing uses the defaults of its other arguments, as a call does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Tracer(fx.Tracer):
    """Treats every convolution and BatchNorm as one node, including the project's own classes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in CONVS + NORMS or super().is_leaf_module(m, module_qualified_name)


def has_hooks(model: nn.Module) -> bool:
    """Whether the model has hooks or parametrizations, which a graph does not show."""
    return any(any(vars(m).get(kind) for kind in _HOOKS) or is_parametrized(m) for m in model.modules())
