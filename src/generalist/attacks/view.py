"""The model as an attack sees it: frozen, fast, with answers that do not depend on the rest of the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from generalist.core.types import Criterion
from generalist.fastpass import Prepared, prepared
from generalist.models.frozen import frozen

# Half precision loses small gradients. The direction of a step does not depend on the scale of the loss.
HALF_LOSS_SCALE = 2.0**10
# With fewer rows the CPU's matrix kernels sum in another order. The verdict on an image must not depend on its batch.
MIN_ROWS = 16


@dataclass
class Passes:
    """How many images went through the model, and through its backward pass."""

    forward: int = 0
    backward: int = 0


_passes: ContextVar[Passes | None] = ContextVar("passes", default=None)


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """Count the passes of all attacks inside the `with` block; blocks may be nested.

    Returns:
        A context manager that yields the counts, in images: `forward` and `backward`.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> with attacks.counted_passes() as passes:
        ...     x_adv = attacks.pgd(model, x, y, threat="linf:8/255", steps=10)
        >>> passes
        Passes(forward=40, backward=40)
    """
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
    """Logits [B, K] that do not depend on how many images share the batch.

    Each tensor of `more` has one row per image; the model is called with them as further arguments.
    """
    count_passes(len(x), len(x) * x.requires_grad)
    return model(*map(pad_rows, (x, *more)))[: len(x)]


def pad_rows(batch: Tensor) -> Tensor:
    """Pad a small batch to MIN_ROWS rows by repeating its own; a larger or empty batch stays as it is."""
    if len(batch) >= MIN_ROWS or len(batch) == 0:
        return batch
    return batch[torch.arange(MIN_ROWS, device=batch.device) % len(batch)]


def count_passes(forward: int, backward: int = 0) -> None:
    """Add images to the counts of `counted_passes`, if anybody counts."""
    passes = _passes.get()
    if passes is not None:
        passes.forward += forward
        passes.backward += backward


class View(nn.Module):
    """A prepared model whose answers do not depend on the batch size."""

    model: nn.Module

    def __init__(self, ready: Prepared) -> None:
        super().__init__()
        self.model = ready.model
        self.window_passes = ready.window_passes

    def forward(self, x: Tensor) -> Tensor:
        return steady_forward(self.model, x)


@contextmanager
def attack_view(model: nn.Module) -> Iterator[View]:
    """The model made ready for the many passes of an attack (`fastpass.prepared`).

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was. Its weights must not change inside the
            `with` block.

    Returns:
        A context manager that yields a module to call: eval mode, no weight gradients, the same logits.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> with attacks.attack_view(model) as view:
        ...     view(torch.rand(4, 1, 8, 8)).shape
        torch.Size([4, 10])
    """
    with prepared(model) as ready:
        yield View(ready)


def loss_scale(device: torch.device) -> float:
    """The factor for a loss before a backward pass of its own: above 1 under float16 autocast.

    Args:
        device: The device of the images.

    Returns:
        The factor.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> attacks.loss_scale(torch.device("cpu"))
        1.0
    """
    half = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
    return HALF_LOSS_SCALE if half else 1.0


def loss_and_gradient(model: nn.Module, x: Tensor, y: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor, Tensor]:
    """One forward and backward pass: logits, loss per image, and its gradient in the pixels.

    No weight gradient is computed where the model is frozen, as inside `attack_view`.

    Args:
        model: Maps images [B, ...] to logits [B, K].
        x: Images [B, ...].
        y: Labels [B].
        criterion: (logits [B, K], labels [B]) → loss per image [B].

    Returns:
        Logits [B, K], loss [B] and gradient [B, ...]. NaN in a gradient becomes 0. Under float16 autocast the gradient
        is scaled by `loss_scale`.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> with attacks.attack_view(model) as view:
        ...     logits, loss, gradient = attacks.loss_and_gradient(view, x, y, attacks.cross_entropy)
        >>> logits.shape, loss.shape, gradient.shape
        (torch.Size([4, 10]), torch.Size([4]), torch.Size([4, 1, 8, 8]))
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(x).float()
        loss = criterion(logits, y)
        (gradient,) = torch.autograd.grad(loss.sum() * loss_scale(x.device), x)
    # A NaN gradient would lead to a NaN image, whose misclassification means nothing.
    return logits.detach(), loss.detach(), torch.nan_to_num(gradient)


@torch.no_grad()
def judged(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[B] each: wrong according to the model itself, in eval mode and full precision; wrong because logits are NaN."""
    with frozen(model), torch.autocast(x.device.type, enabled=False):
        logits = steady_forward(model, x)
    undefined = logits.isnan().any(1)
    return (logits.argmax(1) != y) | undefined, undefined


def misclassified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the model gets wrong, in eval mode and full precision; NaN logits count as wrong.

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was.
        x: Images [B, ...].
        y: Labels [B].

    Returns:
        Boolean [B].

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Identity()  # the pixels are the logits
        >>> x, y = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])
        >>> attacks.misclassified(model, x, y)
        tensor([False,  True])
    """
    return judged(model, x, y)[0]
