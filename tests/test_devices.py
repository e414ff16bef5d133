"""The same code on every device there is; where there is only a CPU, the accelerators' tests say so."""

import os
import signal

import pytest
import torch

import generalist
from generalist.core.errors import UserError
from generalist.core.rng import ImageStreams
from generalist.training import precision

ACCELERATORS = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device here")),
]


@pytest.mark.parametrize("device", ["cpu", *ACCELERATORS])
def test_a_tiny_generalist_trains_and_is_attacked(device, tmp_path):
    sets = ["data.limit=100", "model.width=4", "training.batch_size=32", "training.epochs=2", "validation.images=20",
            f"training.device={device}"]  # fmt: skip
    run = generalist.train(generalist.load_recipe("digits-generalist-t", sets), out=tmp_path / "run")
    assert run.models == ["global", "linf", "natural", "l2"]


@pytest.mark.parametrize("device", ACCELERATORS)
def test_random_streams_are_the_same_on_every_device(device):
    ids = torch.arange(5)
    there = ImageStreams("x", ids=ids.to(device)).uniform(4, 4)
    torch.testing.assert_close(there.cpu(), ImageStreams("x", ids=ids).uniform(4, 4))


def test_auto_takes_bf16_only_where_the_hardware_computes_in_it(monkeypatch):
    cpu = torch.device("cpu")
    for fast, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(precision, "cpu_has_fast_bf16", lambda fast=fast: fast)
        assert precision.pick_precision("auto", cpu) == dtype
    assert precision.pick_precision("bf16", cpu) == torch.bfloat16


def test_a_cpu_that_announces_bf16_and_refuses_it_is_found_out(monkeypatch):
    """As some virtual machines do with AMX: the process that tries it is killed."""
    monkeypatch.setattr(precision, "cpu_has_fast_bf16", lambda: True)
    monkeypatch.setattr(precision, "_try_step", lambda dtype: os.kill(os.getpid(), signal.SIGKILL))
    precision.cpu_survives.cache_clear()
    try:
        with pytest.warns(UserWarning, match="announces bf16 but refuses it"):
            assert precision.pick_precision("auto", torch.device("cpu")) == torch.float32
        with pytest.raises(UserError, match="precision bf16 cannot be used here"):
            precision.pick_precision("bf16", torch.device("cpu"))
    finally:
        precision.cpu_survives.cache_clear()


def test_a_step_that_works_is_believed():
    precision.cpu_survives.cache_clear()
    assert precision.cpu_survives(torch.bfloat16)


def test_bf16_autocast_trains_too(tmp_path):
    sets = ["data.limit=100", "model.width=4", "training.batch_size=32", "training.epochs=4", "validation.images=20",
            "training.precision=bf16"]  # fmt: skip
    run = generalist.train(generalist.load_recipe("digits-nt", sets), out=tmp_path / "run")
    assert all(parameter.dtype == torch.float32 for parameter in run.model().parameters())
    losses = [record["train"]["natural"]["loss"] for record in run.metrics if record["kind"] == "epoch"]
    assert losses[-1] < losses[0]


def test_a_device_that_is_not_there_is_a_clear_error():
    missing = "cuda" if not torch.cuda.is_available() else "xpu"
    with pytest.raises(UserError, match=f"device '{missing}' cannot be used here"):
        precision.pick_device(missing)
    with pytest.raises(UserError, match="'warp'"):
        precision.pick_device("warp")
