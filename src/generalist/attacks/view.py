"""The model as an attack sees it: eval mode, frozen weights, BatchNorm folded; the model itself is left as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from generalist.core.types import Criterion
from generalist.models import folded

# half precision loses small gradients; the direction of a step does not depend on the scale of the loss
HALF_LOSS_SCALE = 2.0**10


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode without weight gradients; the mode of every module and every flag are put back."""
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        yield model
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)


@contextmanager
def attack_view(model: nn.Module) -> Iterator[nn.Module]:
    """The folded shadow of the model or, where folding is not possible, the model itself, frozen."""
    shadow = folded(model)
    if shadow is not model:
        yield shadow
    else:
        with frozen(model):
            yield model


def loss_and_gradient(model: nn.Module, x: Tensor, y: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, K], loss [B] and its gradient for each image [B, ...]; no weight gradient is computed."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(x).float()
        loss = criterion(logits, y)
        half = torch.is_autocast_enabled(x.device.type) and torch.get_autocast_dtype(x.device.type) == torch.float16
        scale = HALF_LOSS_SCALE if half else 1.0
        (gradient,) = torch.autograd.grad(loss.sum() * scale, x)
    return logits.detach(), loss.detach(), gradient
