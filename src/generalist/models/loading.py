"""Models to and from disk: `<path>.safetensors` holds the weights, `<path>.json` what they are the weights of."""

import json
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.files import digest, read_json, seal_holds, sealed, write_atomically
from generalist.core.types import StateTree
from generalist.models.building import build_from_spec, build_model
from generalist.models.matching import load_matching_
from generalist.models.spec import Classifier, ModelSpec

__all__ = ["ModelSpec", "build_model", "load_model", "load_weights", "save_model"]

FORMAT_VERSION = 2
OLDER_VERSIONS = (1,)  # without a digest of the card itself
_NESTINGS = ("state_dict", "model_state_dict", "model", "net")
_WRAPPERS = ("module.", "_orig_mod.")


def save_model(model: nn.Module, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> Path:
    """Write a model; gives back the path of the weights. Each file is replaced whole or not at all."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, ModelSpec):
        raise UserError(f"a {type(model).__name__} without a spec cannot be saved; build it with build_model")
    weights, card = _files(path)
    # Cloned, for safetensors wants contiguous tensors that share no memory.
    state = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in model.state_dict().items()}
    packed = safetensors.torch.save(state)
    described = sealed(
        {
            "format_version": FORMAT_VERSION,
            "spec": spec.to_json(),
            "sha256": digest(packed),
            "extra": dict(extra or {}),
        }
    )
    text = json.dumps(described, indent=2) + "\n"  # before anything is written, for extra may not be JSON
    write_atomically(weights, packed)
    write_atomically(card, text.encode())
    return weights


def load_model(path: str | Path) -> Classifier:
    """The model that `save_model` wrote, checked against its hash, in eval mode; any of its two files names it."""
    weights, card = _files(path)
    described = _read_card(card)
    packed = _read_described(weights, card, described)
    state = _decode(weights, lambda: safetensors.torch.load(packed))
    try:
        model = build_from_spec(ModelSpec.from_json(described["spec"]))
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{card} does not describe a model that can be built: {str(error).splitlines()[0]}") from None
    dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(dtypes) == 1:  # what was saved in float64 comes back in float64
        model = model.to(dtypes.pop())
    load_matching_(model, state, source=str(weights))
    return model.eval()


def check_saved(path: str | Path) -> None:
    """Refuse a saved model whose weights are missing or are not those that its card describes."""
    weights, card = _files(path)
    _read_described(weights, card, _read_card(card))


def read_extra(path: str | Path) -> dict[str, Any]:
    """The `extra` that was saved beside a model."""
    return _read_card(_files(path)[1])["extra"]


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a foreign checkpoint (.safetensors, .pt, .pth) into a model, pairing by name."""
    path = Path(path)
    if path.suffix == ".safetensors":
        _, card = _files(path)
        packed = _read_described(path, card, _read_card(card)) if card.is_file() else _read(path)
        tree: Any = _decode(path, lambda: safetensors.torch.load(packed))
    elif path.suffix in (".pt", ".pth"):
        if not path.is_file():
            raise UserError(f"{path} does not exist")
        tree = _decode(path, lambda: torch.load(path, map_location="cpu", weights_only=True))
    else:
        raise UserError(f"{path}: weights are read from .safetensors, .pt or .pth")
    load_matching_(model, _rename(_unwrap(tree, path), set(model.state_dict())), source=str(path))


def _unwrap(tree: Any, path: Path) -> StateTree:
    """The named tensors inside a checkpoint, out of the usual nestings and wrappers."""
    while isinstance(tree, Mapping):
        inner = next((tree[key] for key in _NESTINGS if isinstance(tree.get(key), Mapping)), None)
        if inner is None:
            break
        tree = inner
    if not isinstance(tree, Mapping) or not tree or not all(isinstance(value, Tensor) for value in tree.values()):
        raise UserError(f"{path} holds no state_dict; looked at its top and under {', '.join(_NESTINGS)}")
    state = {str(name): value for name, value in tree.items()}
    while prefix := next((p for p in _WRAPPERS if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _rename(state: StateTree, wanted: set[str]) -> StateTree:
    """With or without our "network." before every name, whichever fits more of them."""
    candidates = [
        state,
        {f"network.{name}": value for name, value in state.items()},
        {name.removeprefix("network."): value for name, value in state.items()},
    ]
    return max(candidates, key=lambda candidate: len(wanted & candidate.keys()))


def _files(path: str | Path) -> tuple[Path, Path]:
    stem = str(path).removesuffix(".safetensors").removesuffix(".json")
    return Path(f"{stem}.safetensors"), Path(f"{stem}.json")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _read_described(weights: Path, card: Path, described: Mapping[str, Any]) -> bytes:
    packed = _read(weights)
    if digest(packed) != described["sha256"]:
        raise UserError(f"{weights} is not the file that {card.name} describes (its sha256 differs); save it again")
    return packed


def _read_card(card: Path) -> dict[str, Any]:
    """What a card says, if it is as it was written."""
    if not card.exists():
        raise UserError(f"{card} does not exist")
    described = read_json(card)
    if seal_holds(described) is False:
        raise UserError(f"{card} was changed since the model was saved (its digest differs); restore it")
    fields = {"format_version": int, "spec": dict, "sha256": str, "extra": dict}
    if not all(isinstance(described.get(field), kind) for field, kind in fields.items()):
        raise UserError(f"{card} does not describe a model; give the file that save_model wrote")
    version = described["format_version"]
    if version not in (FORMAT_VERSION, *OLDER_VERSIONS):
        raise UserError(f"{card} has format {version}; this version reads {FORMAT_VERSION}")
    if seal_holds(described) is None:
        if version == FORMAT_VERSION:
            raise UserError(f"{card} was changed since the model was saved (it has no digest); restore it")
        warnings.warn(f"{card} is of an older version and has no digest: changes to it would not show", stacklevel=2)
    return described


def _decode(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except pickle.UnpicklingError:
        raise UserError(f"{path} is damaged or refused for holding Python objects; save its state_dict alone") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read as a checkpoint ({type(error).__name__}); is it damaged?") from None
