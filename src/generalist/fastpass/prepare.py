"""The one entry to the faster passes: a model made ready for the many passes of an attack."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from generalist.fastpass.allocator import keep_freed_memory
from generalist.fastpass.folding import folded, forget_transforms
from generalist.fastpass.patches import Patchable, WindowPasses
from generalist.fastpass.switch import is_on
from generalist.fastpass.winograd import float32_on_cpu
from generalist.models.frozen import frozen


class Prepared:
    """A model in eval mode, without weight gradients, as an attack runs it.

    `model` is the module to call: a faster copy with the same answers, or the model itself.
    """

    def __init__(self, model: nn.Module, *, fast: bool) -> None:
        self.model = model
        self._fast = fast
        self._patchable: list[Patchable | None] = []  # empty until somebody asks: tracing takes time

    def window_passes(self, known: Tensor, side: int) -> WindowPasses | None:
        """Passes over images that differ from known ones in one square window each.

        Args:
            known: The images to start from, [B, C, H, W].
            side: The side of the windows, in pixels.

        Returns:
            The passes, or None where whole passes are as fast, or where nothing faster is possible or allowed.
        """
        if not self._fast or not float32_on_cpu(known):
            return None
        if not self._patchable:
            self._patchable.append(Patchable.of(self.model, known))
        patchable = self._patchable[0]
        return None if patchable is None else patchable.around(known, side)


@contextmanager
def prepared(model: nn.Module) -> Iterator[Prepared]:
    """Make a model ready for many passes through weights that stay the same.

    BatchNorm is folded into convolutions, convolutions of small maps take fewer multiplications, and images that change
    in one window are recomputed there alone. Each is used only where it gives the same answers up to rounding. Where
    the switch is off (`switched_off`, `GENERALIST_FASTPASS=0`), the model itself runs, frozen, in whole passes.

    Args:
        model: Any module that maps images [B, C, H, W] to logits [B, K]. It is left as it was. Its weights must not
            change inside the `with` block.

    Returns:
        A context manager that yields a `Prepared`.

    Example:
        >>> import torch
        >>> from generalist import build_model, fastpass
        >>> model, x = build_model("small_cnn", classes=10, size=8, width=4), torch.rand(4, 3, 8, 8)
        >>> with fastpass.prepared(model) as ready:
        ...     ready.model(x).shape
        torch.Size([4, 10])
    """
    fast = is_on()
    if fast:
        keep_freed_memory()
    module = folded(model) if fast else model
    if module is model:
        with frozen(model):
            yield Prepared(model, fast=fast)
        return
    try:
        yield Prepared(module, fast=fast)
    finally:
        forget_transforms(module)
