"""BatchNorm that ranks share: alone it is the usual one. (Several ranks: tests/distributed/test_ranks.py.)"""

import torch
from torch import nn

from generalist.distributed.ranks import Team
from generalist.distributed.shared_batchnorm import (
    SharedBatchNorm,
    has_unshared_batchnorm,
    share_batchnorm_,
    statistics_over,
)
from generalist.fastpass.folding import fold_batchnorm
from generalist.models import build_model


def pair():
    usual, shared = (build_model("resnet18", classes=3, channels=3, size=8, width=4, seed=1) for _ in range(2))
    share_batchnorm_(shared)
    return usual, shared


def test_every_batchnorm_is_replaced_and_the_names_stay():
    usual, shared = pair()
    assert not any(type(module) is nn.BatchNorm2d for module in shared.modules())
    assert any(isinstance(module, SharedBatchNorm) for module in shared.modules())
    assert list(usual.state_dict()) == list(shared.state_dict())


def test_what_cannot_be_shared_is_known():
    usual, shared = pair()
    assert has_unshared_batchnorm(usual)
    assert not has_unshared_batchnorm(shared)
    assert has_unshared_batchnorm(nn.Sequential(shared, nn.BatchNorm1d(3)))
    assert not has_unshared_batchnorm(nn.Linear(2, 2))


def test_alone_it_is_batchnorm_bit_for_bit():
    usual, shared = pair()
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for mode in (True, False):
        assert torch.equal(usual.train(mode)(x), shared.train(mode)(x))
    assert all(
        torch.equal(a, b) for a, b in zip(usual.state_dict().values(), shared.state_dict().values(), strict=True)
    )


def test_it_folds_for_attacks():
    _, shared = pair()
    shadow = fold_batchnorm(shared)
    assert shadow is not None
    assert not any(isinstance(module, nn.BatchNorm2d) for module in shadow.modules())


def test_the_sums_give_batchnorm_and_its_gradients(monkeypatch):
    """A team that says it is of two, but whose sums are those of one rank: all of the arithmetic, and no network."""
    monkeypatch.setattr(Team, "all_reduce_", lambda self, tensors, purpose: None)
    usual, shared = nn.BatchNorm2d(5), SharedBatchNorm(5)
    draw = torch.Generator().manual_seed(0)
    for parameter in ("weight", "bias"):
        value = torch.rand(5, generator=draw)
        for norm in (usual, shared):
            getattr(norm, parameter).data.copy_(value)
    x = (torch.rand(6, 5, 3, 3, generator=draw) * 4 + 1).requires_grad_()
    upstream = torch.rand(6, 5, 3, 3, generator=draw)
    found = []
    for norm in (usual, shared):
        with statistics_over(Team((0, 1)), norm):
            out = norm(x)
        found.append([out, *torch.autograd.grad((out * upstream).sum(), [x, norm.weight, norm.bias]), *norm.buffers()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_outside_of_a_step_nothing_of_the_team_is_left(monkeypatch):
    """An attribute that came or went would make attacks trace the network again."""
    monkeypatch.setattr(Team, "all_reduce_", lambda self, tensors, purpose: [tensor.mul_(2) for tensor in tensors])
    shared, twin = SharedBatchNorm(5), nn.BatchNorm2d(5)
    before = dict(vars(shared))
    with statistics_over(Team((0, 1)), shared, nn.Sequential(shared)):
        assert shared.team == Team((0, 1))
    assert vars(shared) == before
    x = torch.rand(6, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(shared(x), twin(x))
    with statistics_over(Team((0,)), shared):
        assert shared.team is None
