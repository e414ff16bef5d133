"""TensorBoard event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes event files through torch's `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def open_tensorboard(folder: Path, *, step: int) -> TensorBoard | None:
    """A writer into the folder; None where TensorBoard is not installed, or broken beside this torch."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except Exception:
        return None
    return TensorBoard(SummaryWriter(str(folder), purge_step=step + 1))
