"""The processes (ranks) of a job, which are one unless torchrun started more, and what they send each other.

Every function works with one process too, and does nothing then. Nothing here is ambient but the default process group
of torch.distributed: who shares a batch is a `Team`, which is passed on explicitly.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from generalist.core.errors import RunError, UserError
from generalist.distributed.launch import launched_processes, local_rank
from generalist.distributed.rendezvous import fresh_store

T = TypeVar("T")


@dataclass
class Traffic:
    """Bytes of tensors that this process has sent, by purpose, as counted for ring and tree algorithms."""

    sent: dict[str, int]

    def add(self, purpose: str, size: float) -> None:
        """Add `size` bytes."""
        self.sent[purpose] = self.sent.get(purpose, 0) + round(size)


traffic = Traffic({})


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes have joined."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this is the main rank, the only one that writes files and prints."""
    return rank() == 0


def restarted() -> bool:
    """Whether torchrun has restarted the processes after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined_ranks() -> Iterator[None]:
    """Inside, this process has joined those that torchrun started; a single process is left as it is.

    `train`, `fit`, `evaluate` and `dial` share their work among the processes then. All of them make the same calls,
    and the main one writes the files. Each uses its share of the cores: busy processes with one thread per core each
    slow each other down.

    Returns:
        A context for all calls of the script.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> with generalist.joined_ranks():  # a script that `torchrun --nproc-per-node 4` started, or not
        ...     run = generalist.train("digits-at", out=tmp / "by-ranks", overrides=small)
    """
    if launched_processes() == 1 or dist.is_initialized():
        yield
        return
    on_this_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if on_this_machine > 1:  # else the cores are not shared, and OMP_NUM_THREADS was set by the user, not by torchrun
        torch.set_num_threads(threads_each(on_this_machine))
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        shared, rank, world = next(dist.rendezvous("env://", timeout=patience()))
        store = fresh_store(shared, rank, world, patience=patience())
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=patience())
    except (ValueError, RuntimeError, TimeoutError) as error:
        raise UserError(f"the processes could not find each other: {str(error).splitlines()[0]}") from None
    try:
        yield
        barrier()  # a process that left early would break the exchanges of the others
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise RunError(f"a process was lost: {' '.join(str(error).split())}") from None


def threads_each(processes: int) -> int:
    """Threads per process where this many processes share the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def patience() -> timedelta:
    """Timeout of every exchange: $GENERALIST_TIMEOUT seconds, or half an hour."""
    given = os.environ.get("GENERALIST_TIMEOUT", "1800")
    try:
        return timedelta(seconds=float(given))
    except ValueError:
        raise UserError(f"GENERALIST_TIMEOUT is a number of seconds, got {given!r}") from None


def barrier() -> None:
    """Wait for all processes; the error names one that does not arrive in time."""
    if world() == 1:
        return
    began = time.monotonic()
    try:
        dist.monitored_barrier(timeout=patience(), wait_all_ranks=True)
    except RuntimeError as error:
        late = time.monotonic() - began >= 0.9 * patience().total_seconds()
        what = f"did not answer within {patience().total_seconds():g} s" if late else "was lost"
        raise RunError(f"a process {what}: {' '.join(str(error).split())}") from None


def all_gather(value: Any) -> list[Any]:
    """The value of every rank, in order, on all ranks. For small values: they are pickled."""
    if world() == 1:
        return [value]
    barrier()
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, value)
    return found


def run_on_main(function: Callable[[], T]) -> T | None:
    """Call the function on the main rank while the others wait; a UserError or RunError is raised on all of them."""
    result, error = None, None
    if is_main():
        try:
            result = function()
        except (UserError, RunError) as raised:
            error = raised
    error = all_gather(error)[0]
    if error is not None:
        raise error
    return result


def all_reduce_(tensors: Sequence[Tensor], *, purpose: str) -> None:
    """Each tensor ← its sum over all ranks, by one all-reduce."""
    if world() == 1 or not tensors:
        return
    barrier()
    _reduce_(tensors, None, world(), purpose)


def _reduce_(tensors: Sequence[Tensor], group: Any, count: int, purpose: str) -> None:
    with _as_one(tensors) as flat:
        dist.all_reduce(flat, group=group)
    traffic.add(purpose, 2 * (count - 1) / count * flat.numel() * flat.element_size())


def broadcast_(tensors: Sequence[Tensor], *, source: int, purpose: str) -> None:
    """Each tensor ← that of rank `source`, on all ranks; one broadcast per type."""
    if world() == 1:
        return
    barrier()
    for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
        with _as_one([tensor for tensor in tensors if tensor.dtype == kind]) as flat:
            dist.broadcast(flat, source)
        if rank() == source:
            traffic.add(purpose, (world() - 1) * flat.numel() * flat.element_size())


@contextmanager
def _as_one(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors as one flat tensor; what it holds at the end is copied back to them."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    yield flat
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def hand_over(
    tensors: Mapping[str, Tensor] | None, values: Any, *, source: int, to: Sequence[int], purpose: str
) -> tuple[dict[str, Tensor], Any] | None:
    """Send named tensors and plain values from rank `source` to the ranks `to`; all of these call this together.

    Returns:
        What was received; None on the source, and on ranks that take no part.
    """
    me, receivers = rank(), [other for other in to if other != source]
    if me == source:
        assert tensors is not None
        named = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        shapes = {name: (tuple(tensor.shape), tensor.dtype, str(tensor.device)) for name, tensor in named.items()}
        for other in receivers:
            dist.send_object_list([shapes, values], dst=other)
            for tensor in named.values():
                dist.send(tensor, dst=other)
                traffic.add(purpose, tensor.numel() * tensor.element_size())
        return None
    if me not in receivers:
        return None
    head: list[Any] = [None, None]
    dist.recv_object_list(head, src=source)
    received = {}
    for name, (shape, dtype, device) in head[0].items():
        received[name] = torch.empty(shape, dtype=dtype, device=device.partition(":")[0])
        dist.recv(received[name], src=source)
    return received, head[1]


def split_evenly(rows: slice, pieces: int) -> list[slice]:
    """The rows in `pieces` consecutive parts whose lengths differ by at most one; the longer parts come first."""
    size, longer = divmod(rows.stop - rows.start, pieces)
    starts = [rows.start + index * size + min(index, longer) for index in range(pieces + 1)]
    return [slice(first, stop) for first, stop in pairwise(starts)]


@dataclass(frozen=True)
class Team:
    """The ranks that share the batches of a learner. `group` is their process group, None for a single rank."""

    ranks: tuple[int, ...] = (0,)
    group: Any = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def place(self) -> int:
        """Index of this rank in the team."""
        return self.ranks.index(rank())

    def rows(self, count: int) -> slice:
        """This rank's rows of a batch of `count` images; ranks differ by at most one image."""
        return split_evenly(slice(0, count), self.size)[self.place]

    def all_reduce_(self, tensors: Sequence[Tensor], *, purpose: str) -> None:
        """Each tensor ← its sum over the team, by one all-reduce."""
        if self.size > 1 and tensors:
            _reduce_(tensors, self.group, self.size, purpose)

    def all_reduce(self, tensor: Tensor, *, purpose: str) -> Tensor:
        """The sum over the team as part of the autograd graph; the backward pass sums the gradients over the team."""
        total: Tensor = _TeamSum.apply(tensor, self, purpose)
        return total


class _TeamSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, team: Team, purpose: str) -> Tensor:
        ctx.team, ctx.purpose = team, purpose
        total = tensor.clone()
        team.all_reduce_([total], purpose=purpose)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.clone()
        ctx.team.all_reduce_([gradient], purpose=ctx.purpose)
        return gradient, None, None


ALONE = Team()


def make_teams(placements: Sequence[Sequence[int]]) -> dict[tuple[int, ...], Team]:
    """A team per set of ranks. All processes must call this together, with the same sets in the same order."""
    wanted = list(dict.fromkeys(tuple(ranks) for ranks in placements))
    return {ranks: Team(ranks, dist.new_group(list(ranks)) if len(ranks) > 1 else None) for ranks in wanted}
