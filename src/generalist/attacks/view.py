"""The model as an attack sees it: eval mode, frozen weights, BatchNorm folded; the model itself is left as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from generalist.core.types import Criterion
from generalist.fastpass import folded, forget_transforms

# half precision loses small gradients; the direction of a step does not depend on the scale of the loss
HALF_LOSS_SCALE = 2.0**10
# below this many rows the CPU's matrix kernels sum in another order; an image's verdict must not depend on its company
MIN_ROWS = 16
# glibc hands free memory back after every pass, to be taken anew page by page in the next, up to a tenth of the time;
# not so once it has seen a block come and go that was large, but below 32 MiB: then it keeps twice as much
LARGE_BLOCK = 31 * 2**20


@dataclass
class Passes:
    """Images put through the model, and through its backward pass."""

    forward: int = 0
    backward: int = 0


_passes: ContextVar[Passes | None] = ContextVar("passes", default=None)


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """Counts the passes of all attacks inside; counts may be nested."""
    passes, outer = Passes(), _passes.get()
    token = _passes.set(passes)
    try:
        yield passes
    finally:
        _passes.reset(token)
        if outer is not None:
            outer.forward += passes.forward
            outer.backward += passes.backward


def steady_forward(model: Callable[..., Tensor], x: Tensor, *more: Tensor) -> Tensor:
    """Logits that do not depend on how many images share the batch; `more` is told the model of each image as well."""
    count_passes(len(x), len(x) * x.requires_grad)
    return model(*map(filled, (x, *more)))[: len(x)]


def filled(batch: Tensor) -> Tensor:
    """A small batch with repeats of its rows, up to MIN_ROWS; one that is large enough, or has none, as it is."""
    if len(batch) >= MIN_ROWS or len(batch) == 0:
        return batch
    return batch[torch.arange(MIN_ROWS, device=batch.device) % len(batch)]


def count_passes(forward: int, backward: int = 0) -> None:
    passes = _passes.get()
    if passes is not None:
        passes.forward += forward
        passes.backward += backward


class View(nn.Module):
    """A model that is frozen, and steady."""

    model: nn.Module

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return steady_forward(self.model, x)


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
def attack_view(model: nn.Module) -> Iterator[View]:
    """The folded shadow of the model or, where folding is not possible, the model itself, frozen."""
    torch.empty(LARGE_BLOCK, dtype=torch.uint8, device="cpu")
    shadow = folded(model)
    if shadow is not model:
        try:
            yield View(shadow)
        finally:
            forget_transforms(shadow)
    else:
        with frozen(model):
            yield View(model)


def loss_scale(device: torch.device) -> float:
    """What a loss is multiplied by before a backward pass of its own."""
    half = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
    return HALF_LOSS_SCALE if half else 1.0


def loss_and_gradient(model: nn.Module, x: Tensor, y: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, K], loss [B] and its gradient for each image [B, ...]; no weight gradient is computed."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(x).float()
        loss = criterion(logits, y)
        (gradient,) = torch.autograd.grad(loss.sum() * loss_scale(x.device), x)
    # a gradient that is not a number would make a point that is none, and the model's answer to it a false triumph
    return logits.detach(), loss.detach(), torch.nan_to_num(gradient)


@torch.no_grad()
def judged(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[B] each: wrong according to the model itself, in eval mode and full precision; wrong because logits are NaN."""
    with frozen(model), torch.autocast(x.device.type, enabled=False):
        logits = steady_forward(model, x)
    undefined = logits.isnan().any(1)
    return (logits.argmax(1) != y) | undefined, undefined


def misclassified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """[B]: wrong according to the model itself, in eval mode and full precision; NaN logits count as wrong."""
    return judged(model, x, y)[0]
