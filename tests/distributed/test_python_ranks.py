"""From Python, in processes that torchrun started."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_ranks import rank_environment
from torch import nn

import generalist
from run_cases import exit_code, forked


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def fitted(out: Path) -> generalist.Run:
    data = torch.Generator().manual_seed(0)
    images, labels = torch.rand(90, 1, 8, 8, generator=data), torch.arange(90) % 3
    overrides = {"training.precision": "float32", "training.device": "cpu"}
    return generalist.fit(
        network(), (images, labels), threats="linf:1/20", epochs=5, batch_size=16, out=out,
        overrides=overrides,
    )  # fmt: skip


def as_rank(rank: int, port: int, out: Path) -> None:
    os.environ |= rank_environment(rank, 2, port)
    with generalist.joined_ranks():
        run = fitted(out)
        assert generalist.evaluate(run, suite="pgd20", images=12).record()["images"] == 12
        assert len(generalist.dial(run, images=6, points=3).points) == 3


def test_two_ranks_fit_what_one_does(tmp_path: Path) -> None:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    children = [forked(partial(as_rank, rank, store.port, tmp_path / "two")) for rank in (0, 1)]
    assert [exit_code(child) for child in children] == [0, 0]
    alone = fitted(tmp_path / "one")
    assert alone.models == ["global", "linf", "half"], "the method for one norm"
    one, two = alone.model(), generalist.load(tmp_path / "two", model=network())
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    assert generalist.Run(tmp_path / "two").record("pgd20")["images"] == 12


def test_processes_that_have_not_joined_are_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from generalist.training.guards import sole_owner

    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        sole_owner(tmp_path / "run" / ".lock"),
        pytest.raises(generalist.UserError, match=r"torchrun started 2 processes, .*generalist.joined_ranks"),
    ):
        generalist.train("digits-at", out=tmp_path / "run", overrides={"training.epochs": 1})
