"""A team of threads: what ranks exchange within a step, without processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

from generalist.distributed.ranks import Team


class ThreadTeam:
    """A `BatchTeam` of threads that all make the same calls in the same order."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._given = {}

    def all_reduce_(self, tensors, *, purpose):
        self._given[threading.get_ident()] = [tensor.detach().clone() for tensor in tensors]
        self._barrier.wait()
        for index, tensor in enumerate(tensors):
            tensor.copy_(sum(self._given[thread][index] for thread in sorted(self._given)))
        self._barrier.wait()

    all_reduce = Team.all_reduce


def on_each(team, function):
    """function(index) on as many threads as the team has ranks; the results in order."""

    def run(index):
        try:
            return function(index)
        except BaseException:
            team._barrier.abort()
            raise

    with ThreadPoolExecutor(team.size) as pool:
        return list(pool.map(run, range(team.size)))
