"""Checkpoints: tensors as safetensors, then a small JSON that names their hash. The JSON is written last, so a
checkpoint that has one is whole; the last two are kept, and a broken one is named and passed over."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from generalist.core.errors import UserError
from generalist.core.files import digest, write_atomically, write_json
from generalist.core.types import StateTree

KEPT = 2
FORMAT = 1


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Path:
    """Write the checkpoint of `step`, then drop all but the last two."""
    stem = folder / f"step-{step:09d}"
    content = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_atomically(stem.with_suffix(".safetensors"), content)
    write_json(stem.with_suffix(".json"), {"format": FORMAT, "step": step, "sha256": digest(content), **values})
    for old in sorted(folder.glob("step-*.json"))[:-KEPT]:
        old.unlink()
    whole = {path.stem for path in folder.glob("step-*.json")}
    for orphan in folder.glob("step-*.safetensors"):
        if orphan.stem not in whole:
            orphan.unlink()
    return stem


def read_checkpoint(stem: Path) -> tuple[StateTree, dict[str, Any]]:
    """Tensors and values of one checkpoint, checked by hash."""
    try:
        values = json.loads(stem.with_suffix(".json").read_text())
        content = stem.with_suffix(".safetensors").read_bytes()
        if values["format"] != FORMAT:
            raise UserError(f"checkpoint {stem} is of format {values['format']}, this version reads {FORMAT}")
        if digest(content) != values["sha256"]:
            raise UserError(f"checkpoint {stem} is corrupt: its content does not match its hash")
        return load_tensors(content), values
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"checkpoint {stem} is corrupt or unreadable: {error}") from None


def latest_checkpoint(folder: Path) -> tuple[StateTree, dict[str, Any]] | None:
    """The newest whole checkpoint; None where there is none yet; an error where all of them are broken."""
    broken: UserError | None = None
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        if broken is not None:
            warnings.warn(f"{broken}; trying the one before it", stacklevel=2)
        try:
            return read_checkpoint(path.with_suffix(""))
        except UserError as error:
            broken = error
    if broken is not None:
        raise broken
    return None
