"""Jobs shared by worker processes of one thread each, with the same results whatever their number."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from generalist.core.errors import RunError, UserError, one_line

Share = Callable[[float], None]
"""Told how much of a job is done, 0 to 1."""


class Task(Protocol):
    """Does one job. The result must depend on the job alone."""

    def __call__(self, job: Any, share: Share) -> Any: ...


class Workers:
    """Processes that each make the task once and then do jobs with it. One worker is this process itself.

    Use it as a context manager: the processes end with the `with` block, and with this process, however it ends.
    They are spawned, not forked, since torch's threads do not survive a fork. So a script that asks for several has to
    be guarded by `if __name__ == "__main__"`.

    Args:
        make: Makes the task; must be picklable where there are several workers.
        count: How many workers.
    """

    def __init__(self, make: Callable[[], Task], *, count: int) -> None:
        self._make, self._count = make, count
        self._own: Task | None = None
        self._processes: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for connection, process in self._processes.items():
            connection.close()
            process.terminate()
        for process in self._processes.values():
            process.join()
        self._processes.clear()

    def results(self, jobs: Sequence[Any], *, advance: Share) -> Iterator[tuple[int, Any]]:
        """(number of the job, its result) as they are done; `advance` is told how many jobs are done, with fractions.

        Raises:
            RunError: A worker process was killed.
        """
        if self._count == 1:
            yield from self._here(jobs, advance)
        else:
            yield from self._elsewhere(jobs, advance)

    def _here(self, jobs: Sequence[Any], advance: Share) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            with one_thread():
                self._own = self._own or self._make()
                result = self._own(job, partial(_add, advance, number))
            advance(number + 1.0)
            yield number, result

    def _elsewhere(self, jobs: Sequence[Any], advance: Share) -> Iterator[tuple[int, Any]]:
        while len(self._processes) < min(self._count, len(jobs)):
            self._start()
        waiting = list(enumerate(jobs))[::-1]
        shares = [0.0] * len(jobs)
        at_work: dict[Connection, int] = {}
        for connection in self._processes:
            if waiting:
                number, job = waiting.pop()
                at_work[connection] = number
                connection.send(job)
        while at_work:
            ready = set(wait(list(at_work)))
            for connection in [connection for connection in at_work if connection in ready]:
                number = at_work[connection]
                try:
                    kind, content = connection.recv()
                except (EOFError, ConnectionError):
                    raise RunError("a worker process was killed (out of memory?); what is measured is kept") from None
                if kind == "error":
                    raise content
                shares[number] = content if kind == "share" else 1.0
                advance(sum(shares))
                if kind == "result":
                    del at_work[connection]
                    if waiting:
                        following, job = waiting.pop()
                        at_work[connection] = following
                        connection.send(job)
                    yield number, content

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(self._make, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self._processes[ours] = process


def _serve(make: Callable[[], Task], connection: Connection) -> None:
    """What a worker process does until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells everybody; the first process decides
    torch.set_num_threads(1)
    send = partial(_send, connection)
    try:
        task = make()
        while True:
            try:
                job = connection.recv()
            except EOFError:
                return
            send("result", task(job, partial(send, "share")))
    except ConnectionError:  # the first process has ended
        return
    except (UserError, RunError) as error:
        send("error", error)
    except Exception as error:
        send("error", RunError(one_line(f"{type(error).__name__}: {error}")))


def _add(advance: Share, done: int, share: float) -> None:
    advance(done + share)


def _send(connection: Connection, kind: str, content: Any) -> None:
    connection.send((kind, content))


@contextmanager
def one_thread() -> Iterator[None]:
    """As the worker processes compute, so that sums are taken in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
