"""Memory that stays with the process between passes."""

from functools import cache

import torch

LARGE_BLOCK = 31 * 2**20  # bytes: just below the 32 MiB up to which glibc adapts its thresholds


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next pass instead of handing it back to the system.

    glibc serves large tensors by mmap and returns them to the system when they are freed. The next pass then takes the
    same memory anew, page fault by page fault, which costs up to a tenth of the time of an attack. When glibc frees a
    block that came from mmap and is smaller than 32 MiB, it raises its mmap threshold to the size of that block and its
    trim threshold to twice that (mallopt(3), M_MMAP_THRESHOLD). It never lowers them again, so once per process is
    enough. With other allocators this does nothing.
    """
    torch.empty(LARGE_BLOCK, dtype=torch.uint8, device="cpu")
