"""Other people's tools that follow a run while it trains, behind one small protocol.

tensorboard   event files in the run folder, where TensorBoard is installed
mlflow        an MLflow run: a database in the run folder, or the store that $MLFLOW_TRACKING_URI names
wandb         a W&B run: offline files in the run folder, unless $WANDB_MODE says otherwise
ledger        what a tool was told already, so that a resumed run tells it nothing twice

TensorBoard needs no asking; the others follow the runs whose recipe names them in `track`. Nothing leaves this machine
unless those variables say so. `metrics.jsonl` is not one of them: the run itself reads it back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from generalist.core.errors import RunError, UserError
from generalist.core.user_code import first_line
from generalist.runs.folder import Run
from generalist.runs.trackers.ledger import Ledger, ToldOnce, Tool
from generalist.runs.trackers.mlflow import import_mlflow, open_mlflow
from generalist.runs.trackers.tensorboard import import_tensorboard, open_tensorboard
from generalist.runs.trackers.wandb import import_wandb, open_wandb

_IMPORTS: dict[str, Callable[[], Any]] = {
    "tensorboard": import_tensorboard,
    "mlflow": import_mlflow,
    "wandb": import_wandb,
}


class Tracker(Protocol):
    """What a tool must offer to follow a run."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Numbers by name, such as `epoch/train/linf/loss`, measured after `step` training steps."""

    def close(self, *, completed: bool) -> None:
        """The run is complete, or was interrupted and may be opened again."""


def check_trackers(names: Iterable[str]) -> None:
    """Refuse what is not installed, before anything is trained or written."""
    for name in names:
        _IMPORTS[name]()


def open_trackers(run: Run, *, step: int, say: Callable[[str], None]) -> list[Tracker]:
    """TensorBoard where it is installed, and what the recipe names; after `step` nothing is told twice."""
    board = open_tensorboard(run.tensorboard, step=step)
    found: list[Tracker] = [] if board is None else [board]
    openers: dict[str, tuple[Callable[..., Tool], Path]] = {
        "mlflow": (open_mlflow, run.mlflow),
        "wandb": (open_wandb, run.wandb),
    }
    for name, (open_tool, folder) in openers.items():
        if name in run.recipe.track:
            ledger = Ledger.beside(folder)
            found.append(ToldOnce(name, _opened(name, partial(open_tool, run, ledger, say=say)), ledger))
    return found


def _opened(name: str, open_tool: Callable[[], Tool]) -> Tool:
    try:
        return open_tool()
    except (UserError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"{name} cannot follow this run: {first_line(error)}; mend that or leave it out of track, and resume"
        ) from error


def scalars(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """The numbers of a nested record by their path; text and lists are left out."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}/{key}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}/{key}", value
