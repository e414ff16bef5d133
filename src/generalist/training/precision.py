"""Which device, and which number format it does well."""

import faulthandler
import os
import signal
import time
import warnings
from functools import cache
from typing import Literal

import torch
from torch import nn

from generalist.core.errors import UserError
from generalist.distributed.launch import launched_processes, local_rank

Precision = Literal["auto", "float32", "bf16", "fp16"]
_WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
PROBE_SECONDS = 20.0
_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; `auto` is a GPU if there is one, else the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.ones(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UserError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank()) if launched_processes() > 1 else torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def cpu_has_fast_bf16() -> bool:
    """AVX-512 BF16 or AMX; without them bf16 is emulated, more than ten times slower than float32.

    oneDNN, which computes in it, can be told to use less than the CPU has: ONEDNN_MAX_CPU_ISA.
    """
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper() in _WITHOUT_BF16:
        return False
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)


@cache
def cpu_survives(dtype: torch.dtype) -> bool:
    """Whether a training step in this format runs on the CPU at all.

    Some virtual machines announce instructions (AMX) that they then refuse, which kills the process. So a child process
    tries them.
    """
    if not hasattr(os, "fork"):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child starts none
        child = os.fork()
    if child == 0:
        _try_step(dtype)
    deadline = time.monotonic() + PROBE_SECONDS
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return ended[1] == 0


def _try_step(dtype: torch.dtype) -> None:
    """One small forward and backward pass; the process ends with it."""
    code = 1
    try:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            layers = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64))
        with torch.autocast("cpu", dtype):
            loss = layers(torch.ones(32, 8, 8, 8)).float().square().mean()
        loss.backward()
        code = 0
    finally:
        os._exit(code)


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """`auto`: bf16 where the hardware computes in it, fp16 on older GPUs, else float32."""
    if name != "auto":
        dtype = _DTYPES[name]
        if device.type == "cpu" and dtype != torch.float32 and not cpu_survives(dtype):
            raise UserError(f"precision {name} cannot be used here: this CPU refuses it; give float32")
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if device.type == "cpu" and cpu_has_fast_bf16():
        if cpu_survives(torch.bfloat16):
            return torch.bfloat16
        warnings.warn("this CPU announces bf16 but refuses it; training uses float32", stacklevel=2)
    return torch.float32
