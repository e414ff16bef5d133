"""TensorBoard event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generalist.core.errors import UserError
from generalist.core.extras import import_extra


class TensorBoard:
    """Writes event files through torch's `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, completed: bool) -> None:
        self._writer.close()


def import_tensorboard() -> Any:
    return import_extra("torch.utils.tensorboard", extra="tensorboard", needed_by="track: tensorboard")


def open_tensorboard(folder: Path, *, step: int) -> TensorBoard | None:
    """A writer into the folder; None where TensorBoard is not installed, or broken beside this torch."""
    try:
        board = import_tensorboard()
    except UserError:
        return None
    return TensorBoard(board.SummaryWriter(str(folder), purge_step=step + 1))
