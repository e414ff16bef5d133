"""Somebody else's checkpoint: which of its tensors are a model's weights, under which prefix, and its normalisation."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.types import StateTree
from generalist.models.matching import load_matching_
from generalist.models.normalize import Normalize, normalization
from generalist.models.renaming import Rename, check_rules, paired_by_order, renamed, suggestion
from generalist.models.spec import Classifier

USUAL = ("state_dict", "model_state_dict", "model", "net")
"""Where the weights are in a checkpoint that holds several networks."""
WRAPPERS = ("", "network.", "module.", "_orig_mod.", "model.")
COUNTER = "num_batches_tracked"
MEANS, STDS = ("mean", "mu", "means"), ("std", "sigma", "stds")
CLOSE = 1e-3  # how far two writings of one mean may be apart


@dataclass(frozen=True)
class Fit:
    """The tensors under `prefix` of a state_dict are the model's, which has them under `within`."""

    where: str  # the path of the state_dict in the file
    state: StateTree
    prefix: str
    within: str

    @property
    def mapped(self) -> StateTree:
        cut = len(self.prefix)
        return {f"{self.within}{name[cut:]}": t for name, t in self.state.items() if name.startswith(self.prefix)}

    def original(self, mapped: str) -> str:
        return f"{self.prefix}{mapped.removeprefix(self.within)}"

    @property
    def name(self) -> str:
        return repr(".".join(part for part in (self.where, self.prefix.removesuffix(".")) if part) or "its top")


def load_checkpoint_(model: nn.Module, tree: Any, *, source: str, rename: Rename | None = None) -> None:
    """Load the one set of tensors that fits the model; nothing changes unless all of them fit.

    Where none fits by name, but one by order and shape, the error says how; `rename` does it.
    """
    found = dict(_state_dicts(tree))
    if not found:
        raise UserError(f"{source} holds no state_dict: no tensors with names, at its top or inside")
    channels = model.spec.channels if isinstance(model, Classifier) else None
    if rename is not None:
        found = _renamed(model, found, rename, channels, source)
    fits = [fit for where, state in found.items() for fit in _fits(model, where, state, channels)]
    fit = _only(fits, source) if fits else _nearest(model, found, channels)
    if not _statistics(fit.state, channels) and _statistics(beside := _beside(tree, channels), channels):
        fit = replace(fit, state={**beside, **fit.state})
    given = _statistics(fit.state, channels)
    wanted, state = model.state_dict(), fit.mapped
    own = _statistics(wanted, channels)
    normalize = None
    if given and not own and isinstance(model, Classifier) and not normalises_itself(model):
        normalize = _normalize(model, fit.state, given, source)
    if own or isinstance(model, Classifier):  # there is a place for them, so their names need not fit
        state = {name: t for name, t in state.items() if name in wanted or fit.original(name) not in given.values()}
    for kind, name in own.items():  # the file's numbers, under whatever name, or else the model's own
        numbers = state.get(name, fit.state[given[kind]] if given else wanted[name])
        same = numbers.numel() == wanted[name].numel()  # else the names are paired as they are, and the shapes told
        state[name] = numbers.reshape(wanted[name].shape) if same else numbers
    state = {name: t for name, t in state.items() if name in wanted or not name.endswith(COUNTER)}
    try:
        load_matching_(model, state, source=source)
    except UserError as error:
        pairs = None if fits or rename else next(filter(None, _pairings(model, found, channels).values()), None)
        if pairs is None:
            raise
        inside = "network." if isinstance(model, Classifier) else ""
        pairs = {their: our.removeprefix(inside) for their, our in pairs.items()}
        raise UserError(f"{error}; {suggestion(pairs)}", command="--rename order") from None
    if normalize is not None and isinstance(model, Classifier):
        _normalise_by_(model, normalize)
        warnings.warn(f"{source}: it has {_numbers(normalize)}, which the model now normalises by", stacklevel=3)
    rest = [name for name in fit.state if not name.startswith(fit.prefix) and name not in given.values()]
    if rest:
        some = f"{len(rest)} tensors outside {fit.name} are not used, such as {rest[0]!r}"
        warnings.warn(f"{source}: {some}", stacklevel=3)


def _pairings(
    model: nn.Module, found: Mapping[str, StateTree], channels: int | None
) -> dict[str, dict[str, str] | None]:
    """Of every state_dict in a file: its names → the model's, by order and shape, if that can be."""
    tensors = model.state_dict()
    wanted = {name: tensors[name] for name in _weights(tensors, channels)}
    return {where: paired_by_order(state, _weights(state, channels), wanted) for where, state in found.items()}


def _renamed(
    model: nn.Module, found: Mapping[str, StateTree], rename: Rename, channels: int | None, source: str
) -> dict[str, StateTree]:
    if rename != "order":
        check_rules(rename, [name for state in found.values() for name in state], source)
        return {where: {renamed(n, rename): tensor for n, tensor in state.items()} for where, state in found.items()}
    pairs = {where: pairing for where, pairing in _pairings(model, found, channels).items() if pairing is not None}
    if not pairs:
        raise UserError(f"{source} has no set of tensors that pairs with the model's by order and shape")
    return {
        where: {pairing.get(name, name): tensor for name, tensor in found[where].items()}
        for where, pairing in pairs.items()
    }


def normalises_itself(network: Classifier) -> str:
    """The name of the buffer that a network of another's making keeps its mean in; empty where it has none."""
    return _statistics(dict(network.network.named_buffers()), network.spec.channels).get("mean", "")


def _state_dicts(tree: Any, where: str = "") -> Iterator[tuple[str, StateTree]]:
    """Every mapping in the tree that has tensors, with its path."""
    if not isinstance(tree, Mapping):
        return
    tensors = {str(name): value for name, value in tree.items() if isinstance(value, Tensor)}
    if tensors:
        yield where, tensors
    for name, value in tree.items():
        yield from _state_dicts(value, f"{where}.{name}" if where else str(name))


def _beside(tree: Mapping[Any, Any], channels: int | None) -> StateTree:
    """Mean and deviation at the top of a file whose weights are further inside: tensors, lists, or one number each."""
    given = {name: tree[name] for name in (*MEANS, *STDS) if name in tree}
    one_each = all(isinstance(value, float | int) and not isinstance(value, bool) for value in given.values())
    found = {}
    for name, value in given.items():
        if one_each:
            value = [value] * (channels or 1)
        if isinstance(value, list | tuple) and all(isinstance(number, float | int) for number in value):
            value = torch.tensor(value, dtype=torch.float32)
        if isinstance(value, Tensor) and value.numel():
            found[name] = value
    return found


def _fits(model: nn.Module, where: str, state: StateTree, channels: int | None) -> list[Fit]:
    """All ways in which the names of the model are found, whole and alone, under one prefix; the shallowest only."""
    wanted, given = (_weights(tensors, channels) for tensors in (model.state_dict(), state))
    if not wanted:
        return []
    for within in _common_prefixes(wanted):
        names = {name[len(within) :] for name in wanted}
        anchor = min(names)
        prefixes = [n[: -len(anchor)] for n in given if n == anchor or n.endswith(f".{anchor}")]
        fits = []
        for prefix in prefixes:
            inside = {name[len(prefix) :] for name in given if name.startswith(prefix)}
            # A part of the network's own names may be found in another network: then the file must have no other.
            whole = len(inside) == len(given) or within in ("", "network.")
            if inside == names and whole:
                fits.append(Fit(where, state, prefix, within))
        if fits:
            return fits
    return []


def _only(fits: list[Fit], source: str) -> Fit:
    if len(fits) == 1:
        return fits[0]
    names = ", ".join(fit.name for fit in fits)
    for name in USUAL:
        there = [fit for fit in fits if fit.where == name]
        if len(there) == 1:
            warnings.warn(f"{source} has several networks that fit: {names}; {there[0].name} is loaded", stacklevel=4)
            return there[0]
    raise UserError(f"{source} has several networks that fit: {names}; save the one that is meant alone")


def _nearest(model: nn.Module, found: Mapping[str, StateTree], channels: int | None) -> Fit:
    """The pairing that fits most names, to complain about."""
    wanted = _weights(model.state_dict(), channels)
    starts = dict.fromkeys([*WRAPPERS, *_common_prefixes(wanted)])
    pairings = [
        Fit(where, state, prefix, within)
        for where, state in found.items()
        for prefix in dict.fromkeys([*WRAPPERS, *_common_prefixes(_weights(state, channels))])
        for within in starts
    ]
    return max(pairings, key=lambda fit: len(fit.mapped.keys() & wanted))


def _weights(state: StateTree, channels: int | None) -> list[str]:
    """The names that have to be paired: not BatchNorm's counters, nor means and deviations of the channels."""
    statistics = set(_statistics(state, channels).values())
    return [name for name in state if not name.endswith(COUNTER) and name not in statistics]


def _statistics(state: StateTree, channels: int | None) -> dict[str, str]:
    """The names of "mean" and "std" where a state has one of each, of the channels and side by side; else nothing."""
    found: list[dict[str, str]] = []
    for name, value in state.items():
        parent, _, last = name.rpartition(".")
        if last.strip("_").lower() in MEANS and value.numel() in ((1, 3) if channels is None else (channels,)):
            beside = [f"{parent}.{std}" if parent else std for std in _spellings(last)]
            found += [{"mean": name, "std": std} for std in beside if std in state and state[std].shape == value.shape]
    return found[0] if len(found) == 1 else {}


def _spellings(mean: str) -> Iterator[str]:
    """The name of the deviation beside a mean: mu goes with sigma, _mean with _std."""
    word = mean.strip("_")
    for std in STDS:
        yield mean.replace(word, std.upper() if word.isupper() else std)


def _normalize(model: nn.Module, state: StateTree, given: Mapping[str, str], source: str) -> Normalize | None:
    """Our Normalize with the file's numbers; None where the model has them already."""
    assert isinstance(model, Classifier)
    mean, std = (state[given[kind]].flatten().tolist() for kind in ("mean", "std"))
    if max(*mean, *std) > 1:
        raise UserError(
            f"{source} has {given['mean']!r} {_listed(mean)}, which is not of pixels in 0..1; give --mean and --std"
        )
    made = normalization(mean, std, channels=model.spec.channels)
    assert isinstance(made, Normalize)
    if not isinstance(model.normalize, Normalize):
        return made
    there = model.normalize
    if max((a.cpu() - b).abs().max() for a, b in ((there.mean, made.mean), (there.std, made.std))) > CLOSE:
        raise UserError(f"{source} has {_numbers(made)}; the model normalises by {_numbers(there)} already: keep one")
    return None


def _normalise_by_(model: Classifier, normalize: Normalize) -> None:
    mean, std = normalize.mean.flatten().tolist(), normalize.std.flatten().tolist()
    model.normalize = normalize.to(next((p.device for p in model.parameters()), torch.device("cpu")))
    model.spec = replace(model.spec, mean=tuple(mean), std=tuple(std))


def _common_prefixes(names: Iterable[str]) -> list[str]:
    """ "", "a.", "a.b.": the dotted prefixes that all names share, the shortest first."""
    split = [name.split(".")[:-1] for name in names]
    prefixes = [""]
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        prefixes.append(f"{prefixes[-1]}{parts[0]}.")
    return prefixes


def _numbers(normalize: Normalize) -> str:
    return f"mean {_listed(normalize.mean.flatten().tolist())} and std {_listed(normalize.std.flatten().tolist())}"


def _listed(values: list[float]) -> str:
    return ",".join(f"{value:.4g}" for value in values)
