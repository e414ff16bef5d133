"""How long an epoch takes on many machines: a model with two constants, which `benchmarks/ranks.py` measures.

It knows passes, bytes and link speeds. It does not know overlap: gradients and steps are added, which is on the safe
side. Every learner is active, which is when most is exchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from generalist.training.placement import place

EFFICIENCY = 0.54
"""The share of a device's speed at large matrix products that a training step reaches."""
LATENCY = 2.9e-4
"""Seconds that one exchange takes besides its bytes."""
FLOAT, DOUBLE = 4, 8
CARRIED = 3
"""What a learner carries, in the size of its parameters: they, their momentum, and their share of θ_g."""


@dataclass(frozen=True)
class Job:
    """Learners by the passes of a step, the network that each has, and how often they meet."""

    passes: Mapping[str, float]
    parameters: int
    flops: float
    """Of the forward pass of one image."""
    batch_size: int
    steps: int
    """Of an epoch."""
    every_epochs: int = 5
    """Redistribution and validation; a checkpoint is written each epoch."""


@dataclass(frozen=True)
class Machines:
    ranks: int
    flops: float
    """What each device reaches at large matrix products, in a second."""
    bits: float
    """What a link carries in a second."""


@dataclass(frozen=True)
class Epoch:
    """Seconds of work on the busiest rank, seconds of exchange, and bytes that all ranks send together."""

    work: float
    exchange: float
    sent: float

    @property
    def seconds(self) -> float:
        return self.work + self.exchange


@dataclass(frozen=True)
class _Exchange:
    """One exchange: the bytes that the slowest link carries, those of all ranks, and how often in an epoch."""

    link: float
    sent: float
    times: float = 1.0
    turns: float = 1.0

    def seconds(self, machines: Machines) -> float:
        return self.times * (8 * self.link / machines.bits + self.turns * LATENCY)


def epoch(job: Job, machines: Machines) -> Epoch:
    """An epoch as it is here: learners on their own ranks, parameters exchanged where they meet."""
    exchanges = [
        *_gradients(job, machines),
        _all_reduce(job.parameters * DOUBLE, machines.ranks, 1 / job.every_epochs),  # validated, then handed back
        *_checkpoint(job, machines),
        *_validation(job, machines),
    ]
    return _added(job, machines, exchanges)


def epoch_mixed_every_step(job: Job, machines: Machines) -> Epoch:
    """The same, but θ_g is formed in every step, as the algorithm is written down: by an all-reduce over all ranks."""
    every_step = _all_reduce(job.parameters * FLOAT, machines.ranks, job.steps)
    return _added(job, machines, [*_gradients(job, machines), every_step, *_checkpoint(job, machines)])


def _added(job: Job, machines: Machines, exchanges: list[_Exchange]) -> Epoch:
    if machines.ranks == 1:
        exchanges = []
    return Epoch(
        work=job.steps * _work(job, machines),
        exchange=sum(exchange.seconds(machines) for exchange in exchanges),
        sent=sum(exchange.times * exchange.sent for exchange in exchanges),
    )


def _placed(job: Job, machines: Machines) -> dict[str, tuple[int, ...]]:
    return place(job.passes, ranks=machines.ranks, most=job.batch_size)


def _work(job: Job, machines: Machines) -> float:
    """Seconds of a step on the rank that has most to do; a pass is one forward and one backward for the images."""
    of_rank: dict[int, float] = {}
    for name, team in _placed(job, machines).items():
        images = ceil(job.batch_size / len(team))
        for rank in team:
            of_rank[rank] = of_rank.get(rank, 0.0) + job.passes[name] * images * 2 * job.flops
    return max(of_rank.values()) / (EFFICIENCY * machines.flops)


def _all_reduce(size: float, ranks: int, times: float) -> _Exchange:
    """In a ring: every rank sends what it has in `ranks` parts, twice around but for its own."""
    link = 2 * (ranks - 1) / ranks * size
    return _Exchange(link, ranks * link, times)


def _gradients(job: Job, machines: Machines) -> list[_Exchange]:
    """Of learners that split their batches, at every step; teams exchange at the same time, so the largest counts."""
    teams = [len(team) for team in _placed(job, machines).values() if len(team) > 1]
    if not teams:
        return []
    every = [_all_reduce(job.parameters * FLOAT, size, job.steps) for size in teams]
    slowest = max(every, key=lambda exchange: exchange.link)
    return [_Exchange(slowest.link, sum(exchange.sent for exchange in every), job.steps)]


def _checkpoint(job: Job, machines: Machines) -> list[_Exchange]:
    """Learners that rank 0 does not lead go there, one after the other."""
    away = sum(team[0] != 0 for team in _placed(job, machines).values())
    size = away * CARRIED * job.parameters * FLOAT
    return [_Exchange(size, size, turns=away)]


def _validation(job: Job, machines: Machines) -> list[_Exchange]:
    """Every learner's model goes to every rank, as in a tree."""
    size, count = job.parameters * FLOAT, len(job.passes)
    depth = ceil(log2(machines.ranks)) if machines.ranks > 1 else 0
    return [_Exchange(count * depth * size, count * (machines.ranks - 1) * size, 1 / job.every_epochs, count * depth)]
