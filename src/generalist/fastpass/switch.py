"""One switch for all faster passes: the environment variable GENERALIST_FASTPASS and a context manager."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from generalist.core.errors import UserError, shown

VARIABLE = "GENERALIST_FASTPASS"

_switched_off: ContextVar[bool] = ContextVar("switched_off", default=False)


def is_on() -> bool:
    """Whether faster passes may be used: not inside `switched_off`, and GENERALIST_FASTPASS is not 0."""
    value = os.environ.get(VARIABLE, "1").strip() or "1"
    if value not in ("0", "1"):
        raise UserError(f"{VARIABLE} must be 0 (plain passes) or 1 (faster passes), got {shown(value)}")
    return value == "1" and not _switched_off.get()


@contextmanager
def switched_off() -> Iterator[None]:
    """Run attacks inside the `with` block through the model itself, in plain whole passes.

    Verdicts are the same either way. Switch it off to rule the faster passes out while looking for a fault, or to
    measure what they save. The environment variable `GENERALIST_FASTPASS=0` does the same for a whole process.

    Returns:
        A context manager.

    Example:
        >>> import torch
        >>> from generalist import attacks, fastpass
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(2, 1, 8, 8), torch.tensor([3, 7])
        >>> with fastpass.switched_off():
        ...     x_adv = attacks.pgd(model, x, y, threat="linf:8/255")
        >>> x_adv.shape
        torch.Size([2, 1, 8, 8])
    """
    token = _switched_off.set(True)
    try:
        yield
    finally:
        _switched_off.reset(token)
