"""Other people's tools that follow a run while it trains, behind one small protocol.

tensorboard   event files in the run folder, where TensorBoard is installed

`metrics.jsonl` is not one of them: the run itself reads it back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from generalist.runs.folder import RunPaths
from generalist.runs.trackers.tensorboard import open_tensorboard


class Tracker(Protocol):
    """What a tool must offer to follow a run."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Numbers by name, such as `epoch/train/linf/loss`, measured after `step` training steps."""

    def close(self) -> None:
        """The run has ended, or was interrupted; it may be opened again."""


def open_trackers(paths: RunPaths, *, step: int) -> list[Tracker]:
    """Every tracker that can be used here; what an interrupted run logged after `step` is forgotten."""
    board = open_tensorboard(paths.tensorboard, step=step)
    return [] if board is None else [board]


def scalars(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """The numbers of a nested record by their path; text and lists are left out."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}/{key}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}/{key}", value
