"""Pairing saved tensors with a model's by name, and saying which one does not fit."""

import difflib
from collections.abc import Iterable

from torch import nn

from generalist.core.errors import UserError
from generalist.core.types import StateTree


def load_matching_(model: nn.Module, state: StateTree, *, source: str) -> None:
    """Copy every tensor of `state` into the model; nothing is copied unless all of them fit."""
    wanted = model.state_dict()
    # BatchNorm's step counter is younger than many a checkpoint and unused with a fixed momentum.
    state = {name: value for name, value in wanted.items() if name.endswith("num_batches_tracked")} | state
    for name in wanted:
        if name not in state:
            raise UserError(f"{source} has no {name!r}, which the model needs{_near(name, state)}")
    for name in state:
        if name not in wanted:
            raise UserError(f"{source} has {name!r}, which the model does not{_near(name, wanted)}")
    for name, value in wanted.items():
        if state[name].shape != value.shape:
            given, needed = list(state[name].shape), list(value.shape)
            raise UserError(f"{source} has {name!r} of shape {given}; the model's is {needed}")
    model.load_state_dict(state)


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; the nearest is {close[0]!r}" if close else ""
