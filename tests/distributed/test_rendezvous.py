"""Processes that start together find each other whatever earlier ones have left in the store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from generalist.distributed.rendezvous import fresh_store

SOON = timedelta(seconds=20)


def start(store, world):
    """Every process's part of the store, rank 0 coming last."""
    with ThreadPoolExecutor(world) as pool:
        stores = list(pool.map(lambda rank: fresh_store(store, rank, world, patience=SOON), reversed(range(world))))
    return stores[::-1]


def test_nothing_of_an_earlier_start_is_seen():
    store = dist.HashStore()
    store.set_timeout(SOON)
    first = start(store, 3)
    first[0].set("address", "of the dead")
    assert first[2].get("address") == b"of the dead"
    second = start(store, 3)
    assert not any(part.check(["address"]) for part in second)
    second[0].set("address", "new")
    assert [part.get("address") for part in second] == [b"new"] * 3


def test_a_start_that_was_cut_short_does_not_disturb_the_next():
    store = dist.HashStore()
    store.set_timeout(SOON)
    store.set("asks/1", "token of a process that is gone")
    parts = start(store, 2)
    parts[0].set("key", "value")
    assert parts[1].get("key") == b"value"


def test_whoever_does_not_come_is_named():
    store = dist.HashStore()
    store.set_timeout(SOON)
    store.set("asks/1", "token of a process that is gone")
    with pytest.raises(TimeoutError, match=r"ranks \[1\] did not come"):
        fresh_store(store, 0, 2, patience=timedelta(seconds=0.1))
    with pytest.raises(TimeoutError, match="rank 0 did not come"):
        fresh_store(store, 1, 2, patience=timedelta(seconds=0.1))
