"""Somebody's images into a recipe that trains on them."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generalist.core.errors import UserError
from generalist.core.files import user_path, write_atomically
from generalist.data import DataWarning, Survey, survey_images
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.propose import Proposal, propose, written_root
from generalist.report.console import Reporter, Silent, duration
from generalist.runs.doctor import estimate
from generalist.training.precision import pick_device

METHOD = "generalist-late-t"
DEAR = 6 * 3600
"""Seconds of training from which on cheaper choices are named."""


@dataclass(frozen=True)
class Proposed:
    """A recipe that was written, with what it was made from and what it would cost."""

    path: Path
    survey: Survey
    proposal: Proposal
    probe: dict[str, Any] | None

    @property
    def cost(self) -> str:
        return _cost(self.probe)


def init(
    source: str | Path,
    *,
    out: str | Path | None = None,
    method: str = METHOD,
    model: str | None = None,
    size: int | None = None,
    probe: bool = True,
    reporter: Reporter | None = None,
) -> Proposed:
    """Look at images and write a recipe for them.

    Args:
        source: A folder with one sub-folder per class (or `train/` and `test/` with them), or an .npz file.
        out: The recipe; <name of the source>.yaml in the current folder if not given. It must not exist.
        method: A shipped method.
        model: A network, where one is wanted: a shipped name, timm/<name>, torchvision/<name> or module:callable.
        size: The side in pixels that images are resized to, where one is wanted.
        probe: Whether a few steps are timed for the cost.
        reporter: Where progress goes.
    """
    reporter = reporter or Silent()
    path = user_path(source)
    if not path.is_dir() and path.suffix != ".npz":
        raise UserError(f"{source} is neither a folder of images nor an .npz file; give one of them")
    target = user_path(out) if out is not None else Path(f"{path.resolve().stem}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise UserError(f"{target}: a recipe is a .yaml file", command="--out mine.yaml")
    if target.exists():
        raise UserError(f"{target} exists; remove it or give another file", command="--out mine.yaml")
    with reporter.bar(f"looking at {path}", 0, 1):
        found = survey_images(path, told=lambda done, total: reporter.advance(done, total))
    accelerated = pick_device().type != "cpu"
    proposal = propose(found, method=method, accelerated=accelerated, model=model, size=size)
    recipe = load_recipe({**proposal.fields, "name": target.stem})
    timed = None
    if probe:
        reporter.say("a few steps are timed, about 5 seconds")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the proposal says the same
            timed = estimate(recipe)
    text = proposal.text(name=target.name, root=written_root(path, target), cost=_cost(timed))
    write_atomically(target, text.encode())
    return Proposed(target, found, proposal, timed)


def _cost(probe: dict[str, Any] | None) -> str:
    if probe is None:
        return ""
    cost = (
        f"Here ({probe['device']}, {probe['threads']} thread(s)) it takes about {duration(probe['total_seconds'])} and"
        f" {probe['peak_memory_mib']} MiB."
    )
    if probe["total_seconds"] > DEAR:
        cost += " Cheaper: a smaller data.size or model.width, a data.limit, fewer training.epochs."
    return cost
