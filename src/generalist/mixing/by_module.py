"""γ that depends on the module: by name, over the depth of the network, and only where a learner trains."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from torch import nn

from generalist.core.errors import UserError
from generalist.core.schedules import interpolate
from generalist.mixing.plan import WHOLE, Gamma, Points, Share, scaled
from generalist.models.modules import EVERYTHING, Patterns, depths, describe, select_tensors, tensor_names

NOTHING = Points((Fraction(0),), (0.0,))


@dataclass(frozen=True)
class ByName:
    """γ per pattern of module names; of those that match, the longest counts, and elsewhere γ is 0.

    The order of the patterns does not matter, as it does not in the mapping that a recipe gives.
    """

    filters: tuple[tuple[str, Gamma], ...]


@dataclass(frozen=True)
class OverDepth:
    """γ times a factor that is linear between `values`, spread evenly from the first layer to the last."""

    values: tuple[float, ...]
    gamma: Points | Share


ModuleGamma = Gamma | ByName | OverDepth


@dataclass(frozen=True)
class Part:
    """Tensors that are mixed with the same weights: their names, and γ of each learner that trains them."""

    tensors: tuple[str, ...]
    gammas: Mapping[str, Gamma]


def parts_of(
    model: nn.Module, gammas: Mapping[str, ModuleGamma], trained: Mapping[str, Collection[str] | None]
) -> dict[str, Part]:
    """The parts of a network that are mixed with weights of their own, named by their modules.

    Args:
        model: The network that all learners have.
        gammas: γ per learner.
        trained: The tensors that each learner trains, by name; None for all of them.

    Returns:
        The parts; one, named `WHOLE`, where all tensors are mixed alike.
    """
    by_learner = {name: _per_tensor(model, gamma) for name, gamma in gammas.items()}
    groups: dict[tuple[tuple[str, Gamma], ...], list[str]] = {}
    for tensor in tensor_names(model):
        mixed = tuple((name, by_learner[name][tensor]) for name in gammas if _trains(trained.get(name), tensor))
        if not mixed:
            raise UserError(f"no learner trains {describe(model, [tensor])}; let one of them train everything")
        groups.setdefault(mixed, []).append(tensor)
    if len(groups) == 1:
        [(only, tensors)] = groups.items()
        return {WHOLE: Part(tuple(tensors), dict(only))}
    return {describe(model, tensors): Part(tuple(tensors), dict(mixed)) for mixed, tensors in groups.items()}


def _trains(trained: Collection[str] | None, tensor: str) -> bool:
    return trained is None or tensor in trained


def _per_tensor(model: nn.Module, gamma: ModuleGamma) -> dict[str, Gamma]:
    names = tensor_names(model)
    if isinstance(gamma, OverDepth):
        at = [Fraction(index, max(1, len(gamma.values) - 1)) for index in range(len(gamma.values))]
        deep = depths(model)
        return {name: scaled(gamma.gamma, interpolate(Fraction(deep[name]), at, gamma.values)) for name in names}
    if isinstance(gamma, ByName):
        found: dict[str, Gamma] = dict.fromkeys(names, NOTHING)
        for pattern, value in sorted(gamma.filters, key=lambda item: (len(item[0]), item[0])):
            matching = names if pattern == EVERYTHING else select_tensors(model, Patterns((pattern,)))
            found |= dict.fromkeys(matching, value)
        return found
    return dict.fromkeys(names, gamma)
