"""Jobs shared by processes: all results, each once; what goes wrong in a process is told by the first one."""

import os
from functools import partial
from multiprocessing import active_children
from typing import Any

import pytest
import torch

from generalist.core.errors import RunError, UserError
from generalist.runs.workers import Share, Workers


class Task:
    def __init__(self, plus: int) -> None:
        self.plus = plus

    def __call__(self, job: Any, share: Share) -> Any:
        share(0.5)
        if job == "mistake":
            raise UserError("given a mistake; give a number", command="--number")
        if job == "bug":
            raise ValueError("two\nlines")
        if job == "killed":
            os._exit(9)
        return job + self.plus, torch.get_num_threads(), os.getpid()


def make(plus: int) -> Task:
    return Task(plus)


def run(jobs: list[Any], count: int) -> tuple[dict[int, Any], list[float]]:
    told: list[float] = []
    with Workers(partial(make, 10), count=count) as workers:
        return dict(workers.results(jobs, advance=told.append)), told


@pytest.mark.parametrize("count", [1, 2])
def test_every_job_is_done_once_by_one_thread(count: int) -> None:
    torch.set_num_threads(2)
    try:
        found, told = run([1, 2, 3, 4, 5], count)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert {number: result[0] for number, result in found.items()} == {0: 11, 1: 12, 2: 13, 3: 14, 4: 15}
    assert {result[1] for result in found.values()} == {1}
    assert (os.getpid() in {result[2] for result in found.values()}) == (count == 1)
    assert told == sorted(told)
    assert told[-1] == 5.0


def test_what_goes_wrong_in_a_process_is_told_here() -> None:
    cases: dict[str, tuple[type[Exception], str]] = {
        "mistake": (UserError, "given a mistake"),
        "bug": (RunError, "ValueError: two lines"),
        "killed": (RunError, "was killed"),
    }
    for job, (kind, message) in cases.items():
        with pytest.raises(kind, match=message) as raised:
            run([job], 2)
        assert getattr(raised.value, "command", "") == ("--number" if job == "mistake" else "")


def test_no_process_is_left_behind() -> None:
    with Workers(partial(make, 0), count=2) as workers:
        results = workers.results([1, 2, 3], advance=lambda done: None)
        next(results)
        assert len(active_children()) == 2
    assert active_children() == []
