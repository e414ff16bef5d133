"""BatchNorm by the statistics of the whole batch, where several ranks have a part of it each."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from generalist.core.types import BatchTeam


class SharedBatchNorm(nn.BatchNorm2d):
    """BatchNorm with a `team`, which it has inside `statistics_over` only; everywhere else it is `nn.BatchNorm2d`.

    torch's SyncBatchNorm refuses CPUs, has one fixed group, and synchronises in every forward pass in training mode.
    Every rank of the team must run the network equally often, as it does for the loss of a batch.
    """

    team: BatchTeam | None = None  # of the class: an instance that is not shared now has no such attribute

    def forward(self, input: Tensor) -> Tensor:
        team = self.team
        if not self.training or team is None or team.size == 1:
            return super().forward(input)
        wide = input.float()
        per_channel = (1, -1, 1, 1)
        here = wide.new_tensor([input.numel() // input.shape[1]])
        total = team.all_reduce(torch.cat([wide.sum((0, 2, 3)), here]), purpose="statistics")
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = wide - mean.view(per_channel)
        variance = team.all_reduce(centred.square().sum((0, 2, 3)), purpose="statistics") / count
        with torch.no_grad():
            self._update_running_(mean, variance * (count / (count - 1).clamp_min(1)))
        scale = (variance + self.eps).rsqrt() * self.weight
        return torch.addcmul(self.bias.view(per_channel), centred, scale.view(per_channel)).to(input.dtype)

    def _update_running_(self, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


@contextmanager
def statistics_over(team: BatchTeam | None, *networks: nn.Module) -> Iterator[None]:
    """Inside, every SharedBatchNorm of the networks takes its statistics over the batch of the whole team.

    Only forward passes need to be inside: the backward pass knows the team from the graph. Attacks belong outside,
    since a folded copy of the network (`fastpass`) is made anew whenever an attribute of the network has changed.
    """
    shared = team is not None and team.size > 1
    modules = (module for network in networks for module in network.modules()) if shared else ()
    norms = {module for module in modules if isinstance(module, SharedBatchNorm)}
    for norm in norms:
        norm.team = team
    try:
        yield
    finally:
        for norm in norms:
            del norm.team


def has_unshared_batchnorm(model: nn.Module) -> bool:
    """Whether some BatchNorm can only see this rank's part of a batch."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return any(not isinstance(norm, SharedBatchNorm) for norm in norms)


def share_batchnorm_(model: nn.Module) -> None:
    """Replace every usual BatchNorm of the model by a SharedBatchNorm with the same tensors and names."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d and child.affine and child.track_running_stats:
                shared = SharedBatchNorm(child.num_features, child.eps, child.momentum)
                vars(shared).update(vars(child))
                setattr(parent, name, shared)
