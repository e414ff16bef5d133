"""Which device, and which number format it does well."""

from typing import Literal

import torch

from generalist.core.errors import UserError
from generalist.core.ranks import local_rank, started_together

Precision = Literal["auto", "float32", "bf16", "fp16"]
_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str = "auto") -> torch.device:
    if name != "auto":
        try:
            device = torch.device(name)
            torch.ones(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UserError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank()) if started_together() > 1 else torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def cpu_has_fast_bf16() -> bool:
    """AVX-512 BF16 or AMX; without them bf16 is emulated, more than ten times slower than float32."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """`auto`: bf16 where the hardware computes in it, fp16 on older GPUs, else float32."""
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if device.type == "cpu" and cpu_has_fast_bf16():
        return torch.bfloat16
    return torch.float32
