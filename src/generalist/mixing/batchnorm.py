"""BatchNorm statistics of an averaged model, measured on training batches."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from generalist.core.types import Batch, Objective, StateTree, step_context


def has_batchnorm(model: nn.Module) -> bool:
    """Whether the model has a BatchNorm layer of any kind."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def statistics(model: nn.Module) -> StateTree:
    """Running means and variances of all BatchNorm layers, by their names in the `state_dict`; not copied."""
    return {
        f"{path}.{name}": tensor
        for path, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, tensor in (("running_mean", module.running_mean), ("running_var", module.running_var))
        if tensor is not None
    }


@torch.no_grad()
def recalibrate_(
    model: nn.Module,
    objectives: Sequence[Objective],
    batches: Iterable[Batch],
    *,
    seed: int,
    progress: float,
    clean: bool = True,
) -> None:
    """Running statistics ← plain averages over clean images and over what each objective feeds the model.

    Args:
        model: the model to measure; its mode and momenta are restored.
        objectives: those whose inputs count; none for clean images alone.
        batches: the batches to measure on.
        seed: of the attacks of the objectives.
        progress: how much of training is done, 0 to 1.
        clean: whether clean images count. Where they do not, the first attack meets the statistics that are there.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    training = model.training
    try:
        for norm in norms:
            if clean:
                norm.reset_running_stats()
            elif norm.num_batches_tracked is not None:
                norm.num_batches_tracked.zero_()  # the first pass replaces what was there
            norm.momentum = None  # torch: a cumulative average
        for batch in batches:
            model.train()
            if clean:
                model(batch.x)
            for index, objective in enumerate(objectives):
                context = step_context(seed, "recalibrate", index, ids=batch.ids, progress=progress, extra=batch.extra)
                objective(model, batch.x, batch.y, context=context)()
    finally:
        model.train(training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
