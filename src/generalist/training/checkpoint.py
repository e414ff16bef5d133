"""Checkpoints: tensors as safetensors, then a small JSON that names their hash and has a digest of its own.

The JSON is written last, so a checkpoint that has one is complete. The last two are kept. A corrupt one is skipped,
with a warning that names it.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.files import digest, read_json, seal_holds, sealed, write_atomically, write_json
from generalist.core.types import StateTree

KEPT = 2
FORMAT = 2
OLDER_FORMATS = (1,)  # without a digest of the JSON itself


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Path:
    """Write the checkpoint of `step`, then delete all but the last two."""
    stem = folder / _name(step)
    content = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_atomically(stem.with_suffix(".safetensors"), content)
    described = sealed({"format": FORMAT, "step": step, "sha256": digest(content), **values})
    write_json(stem.with_suffix(".json"), described)
    for old in sorted(folder.glob("step-*.json"))[:-KEPT]:
        old.unlink()
    whole = {path.stem for path in folder.glob("step-*.json")}
    for orphan in folder.glob("step-*.safetensors"):
        if orphan.stem not in whole:
            orphan.unlink()
    return stem


def read_checkpoint(stem: Path, *, owner: Mapping[str, str]) -> tuple[StateTree, dict[str, Any]]:
    """Tensors and values of one checkpoint, both checked by hash; its `owner` must be the one given."""
    values = read_json(stem.with_suffix(".json"))
    seal = seal_holds(values)
    if seal is False or (seal is None and values.get("format") not in OLDER_FORMATS):
        raise UserError(f"checkpoint {stem} is corrupt: its JSON was changed since it was written")
    try:
        if values["format"] not in (FORMAT, *OLDER_FORMATS):
            raise UserError(f"checkpoint {stem} is of format {values['format']}, this version reads {FORMAT}")
        content = stem.with_suffix(".safetensors").read_bytes()
        if digest(content) != values["sha256"]:
            raise UserError(f"checkpoint {stem} is corrupt: its content does not match its hash")
        if stem.name != _name(values["step"]):
            raise UserError(f"checkpoint {stem} is corrupt: it is that of step {values['step']}")
        for aspect, ours in owner.items():
            if values.get("owner", owner)[aspect] != ours:
                raise UserError(f"checkpoint {stem} is not of this run: it was made with another {aspect}")
        tensors = load_tensors(content)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"checkpoint {stem} is corrupt or unreadable: {error}") from None
    if seal is None:
        warnings.warn(
            f"checkpoint {stem}: an older version made it, without a digest; it reset lone learners", stacklevel=2
        )
    return tensors, values


def _name(step: int) -> str:
    return f"step-{step:09d}"


def latest_checkpoint(folder: Path, *, owner: Mapping[str, str]) -> tuple[StateTree, dict[str, Any]] | None:
    """The newest complete checkpoint; None where there is none yet; an error where all of them are corrupt."""
    broken: UserError | None = None
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        if broken is not None:
            warnings.warn(f"{broken}; trying the one before it", stacklevel=2)
        try:
            return read_checkpoint(path.with_suffix(""), owner=owner)
        except UserError as error:
            broken = error
    if broken is not None:
        raise broken
    return None
