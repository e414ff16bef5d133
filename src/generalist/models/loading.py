"""Models to and from disk: `<path>.safetensors` holds the weights, `<path>.json` what they are the weights of."""

import json
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from generalist.core.errors import UserError
from generalist.core.files import digest, read_json, seal_holds, sealed, write_atomically
from generalist.models.building import build_from_spec, build_model
from generalist.models.checkpoints import load_checkpoint_
from generalist.models.matching import load_matching_
from generalist.models.renaming import Rename
from generalist.models.spec import Classifier, ModelSpec

__all__ = ["ModelSpec", "build_model", "load_model", "load_weights", "save_model"]

FORMAT_VERSION = 2
OLDER_VERSIONS = (1,)  # without a digest of the card itself
_TORCH_FILES = (".pt", ".pth", ".ckpt", ".model", ".bin", ".th", ".tar")


def save_model(model: nn.Module, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> Path:
    """Write a model: `<path>.safetensors` has its weights, `<path>.json` how to build it. Both are atomic writes.

    Args:
        model: What `build_model` returned.
        path: With or without the ending .safetensors.
        extra: Of JSON types, kept beside the model.

    Returns:
        The path of the weights.

    Example:
        >>> import generalist, tempfile
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(generalist.save_model(model, f"{folder}/mine").name)
        mine.safetensors
    """
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
    """The model that `save_model` wrote, checked against its hash.

    Args:
        path: Any of its two files, or their name without the ending.

    Returns:
        The Classifier, in eval mode: images [B, C, H, W] in [0, 1] → logits [B, classes].

    Example:
        >>> import generalist, tempfile
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = generalist.load_model(generalist.save_model(model, f"{folder}/mine"))
        >>> again.spec == model.spec, again.training
        (True, False)
    """
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
    model.trained_on = _trained_on(card, described["extra"], model.spec)
    return model.eval()


def check_saved(path: str | Path) -> None:
    """Refuse a saved model whose weights are missing or are not those that its card describes."""
    weights, card = _files(path)
    _read_described(weights, card, _read_card(card))


def _trained_on(card: Path, extra: Mapping[str, Any], spec: ModelSpec) -> Mapping[str, Any]:
    data = extra.get("data") or {} if isinstance(extra, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(data.get("root"), str | None):
        raise UserError(f"{card} does not say what its model was trained on; save the model again")
    classes = data.get("classes")
    if classes is not None and (not isinstance(classes, list) or len(classes) != spec.classes):
        raise UserError(f"{card} does not name the {spec.classes} classes of its model; save the model again")
    return data


def read_extra(path: str | Path) -> dict[str, Any]:
    """The `extra` that was saved beside a model."""
    return _read_card(_files(path)[1])["extra"]


def read_spec(path: str | Path) -> ModelSpec:
    """How to build the model that was saved."""
    return ModelSpec.from_json(_read_card(_files(path)[1])["spec"])


def load_weights(model: nn.Module, path: str | Path, *, rename: Rename | None = None) -> None:
    """Load somebody else's checkpoint into a model, in place; tensors are paired by name under whatever prefix.

    Args:
        model: Any torch module; one of `build_model` takes over the file's normalisation, if it has one.
        path: A .safetensors file, or tensors and plain values that torch.save wrote (.pt, .pth, .ckpt, .model and so
            on), nested or not. Pickled Python objects are refused.
        rename: Their names, or beginnings of them, → ours; `order` pairs tensors by order and shape.

    Example:
        >>> import generalist, tempfile, torch
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> state = {f"module.{name}": tensor + 1 for name, tensor in model.network.state_dict().items()}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"state_dict": state}, f"{folder}/theirs.pt")
        ...     generalist.load_weights(model, f"{folder}/theirs.pt")
        >>> name = next(iter(model.network.state_dict()))
        >>> torch.equal(model.network.state_dict()[name], state[f"module.{name}"])
        True
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        _, card = _files(path)
        ours = card.is_file() and {"format_version", "spec", "sha256"} & read_json(card).keys()
        packed = _read_described(path, card, _read_card(card)) if ours else _read(path)
        tree: Any = _decode(path, lambda: safetensors.torch.load(packed))
    elif path.suffix in _TORCH_FILES:
        if not path.is_file():
            raise UserError(f"{path} does not exist")
        tree = _decode(path, lambda: torch.load(path, map_location="cpu", weights_only=True))
    else:
        raise UserError(f"{path}: weights are read from .safetensors, {', '.join(_TORCH_FILES)}")
    load_checkpoint_(model, tree, source=str(path), rename=rename)


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
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"Python objects ({named[1]})" if named else "Python objects"
        raise UserError(
            f"{path} is damaged, or refused for holding {what}, which could run code; where it comes from somebody you "
            f"trust, save its state_dict alone: torch.save(model.state_dict(), 'weights.pt')"
        ) from None
    except Exception as error:
        raise UserError(f"{path} cannot be read as a checkpoint ({type(error).__name__}); is it damaged?") from None
