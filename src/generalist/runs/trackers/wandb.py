"""W&B: offline files in the run folder, which `wandb sync` sends where and when its user wants."""

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from generalist.core.extras import import_extra
from generalist.runs.folder import Run
from generalist.runs.trackers.ledger import Ledger

PROJECT = "generalist"
STEP = "step"


class WandB:
    """Tells a W&B run. The training step is a metric of its own: W&B's counter cannot be told two records of a step."""

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._run.log({STEP: step, **values})

    def close(self, *, completed: bool) -> None:
        self._run.finish(exit_code=0 if completed else 1)


def import_wandb() -> Any:
    """W&B without its crash reports, which are on unless switched off before it is imported."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return import_extra("wandb", extra="wandb", needed_by="track: wandb")


def open_wandb(run: Run, ledger: Ledger, *, say: Callable[[str], None]) -> WandB:
    """The W&B run that follows this one; a resumed one adds a file to it, under the same id."""
    wandb = import_wandb()
    mode = os.environ.get("WANDB_MODE") or "offline"
    if ledger.name is None:
        ledger.begin(secrets.token_hex(4))
    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        id=ledger.name,
        name=run.folder.resolve().name,
        dir=str(run.folder),
        mode=mode,
        resume=None if mode == "offline" else "allow",
        config={**run.recipe.plain(), "recipe_sha256": run.identity},
        settings=wandb.Settings(silent=True, console="off"),
    )
    return WandB(opened)
