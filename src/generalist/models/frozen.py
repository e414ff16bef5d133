"""A model that is only looked through: eval mode, no weight gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Put a model into eval mode without weight gradients for the duration of a `with` block.

    The mode of every module and every `requires_grad` flag are restored afterwards.

    Args:
        model: Any module, in any mode.

    Returns:
        A context manager that yields the model itself.

    Example:
        >>> from torch import nn
        >>> from generalist.attacks import frozen
        >>> model = nn.Linear(2, 2).train()
        >>> with frozen(model):
        ...     model.training, model.weight.requires_grad
        (False, False)
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        try:
            model.eval()
        except NotImplementedError:  # a program of torch.export has its mode traced in
            for module, _ in modes:
                module.training = False
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        yield model
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
