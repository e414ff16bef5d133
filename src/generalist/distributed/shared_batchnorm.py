"""BatchNorm by the statistics of the whole batch, where several ranks have a part of it each."""

import torch
from torch import Tensor, nn

from generalist.distributed import ranks


class SharedBatchNorm(nn.BatchNorm2d):
    """Inside a learner's step the batch is that of its whole team; everywhere else this is `nn.BatchNorm2d`.

    torch's SyncBatchNorm refuses CPUs, has one fixed group, and synchronises outside of steps too. The network must be
    put through its batch equally often on every rank of the team, as an objective's loss is (attacks use eval mode).
    """

    def forward(self, input: Tensor) -> Tensor:
        team = ranks.current_team()
        if not self.training or team.size == 1:
            return super().forward(input)
        wide = input.float()
        per_channel = (1, -1, 1, 1)
        here = wide.new_tensor([input.numel() // input.shape[1]])
        total = team.sum(torch.cat([wide.sum((0, 2, 3)), here]), purpose="statistics")
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = wide - mean.view(per_channel)
        variance = team.sum(centred.square().sum((0, 2, 3)), purpose="statistics") / count
        with torch.no_grad():
            self._remember_(mean, variance * (count / (count - 1).clamp_min(1)))
        scale = (variance + self.eps).rsqrt() * self.weight
        return torch.addcmul(self.bias.view(per_channel), centred, scale.view(per_channel)).to(input.dtype)

    def _remember_(self, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def has_unshared_batchnorm(model: nn.Module) -> bool:
    """Whether some BatchNorm sees only this rank's part of a batch."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return any(not isinstance(norm, SharedBatchNorm) for norm in norms)


def share_batchnorm_(model: nn.Module) -> None:
    """Every usual BatchNorm of the model ← one that its ranks share, over the same tensors."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d and child.affine and child.track_running_stats:
                shared = SharedBatchNorm(child.num_features, child.eps, child.momentum)
                vars(shared).update(vars(child))
                setattr(parent, name, shared)
