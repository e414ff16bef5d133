"""How the processes of one start find each other, and nobody else.

torchrun keeps its store through all restarts, and what a lost process left there passes for the address of its
successor: whoever reads before the successor has written waits for the dead.
"""

import time
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist

PAUSE = 0.02


def fresh_store(store: dist.Store, rank: int, world: int, *, patience: timedelta) -> dist.Store:
    """A part of the store that belongs to these processes alone; every one of them calls this."""
    deadline = time.monotonic() + patience.total_seconds()
    name = _welcome_all(store, world, deadline) if rank == 0 else _welcomed(store, rank, deadline)
    return dist.PrefixStore(name, store)


def _welcome_all(store: dist.Store, world: int, deadline: float) -> str:
    """Answer whoever asks, by its own token, until everyone has understood."""
    name = uuid4().hex
    missing = set(range(1, world))
    while missing:
        for rank in missing:
            token = store.get(f"asks/{rank}").decode()  # waits for one; an old one is answered in vain
            store.set(f"answer/{rank}/{token}", name)
        missing = {rank for rank in missing if not store.check([f"{name}/{rank}"])}
        _pause(deadline, f"ranks {sorted(missing)}")
    return name


def _welcomed(store: dist.Store, rank: int, deadline: float) -> str:
    token = uuid4().hex
    store.set(f"asks/{rank}", token)
    while not store.check([f"answer/{rank}/{token}"]):
        _pause(deadline, "rank 0")
    name = store.get(f"answer/{rank}/{token}").decode()
    store.set(f"{name}/{rank}", "here")
    return name


def _pause(deadline: float, whom: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{whom} did not come")
    time.sleep(PAUSE)
