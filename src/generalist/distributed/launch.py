"""What torchrun says of this process in its environment; known before torch is imported."""

import os


def launched_processes() -> int:
    """How many processes torchrun started, joined yet or not."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_process() -> bool:
    """Whether this process is the one that writes and speaks, of those that torchrun started."""
    return launched_processes() == 1 or int(os.environ.get("RANK", "0")) == 0
