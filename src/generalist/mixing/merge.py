"""Any mixture of finished models: θ = Σ w_e·θ_e by tensor name, with one set of weights for all tensors or per module.

The models that are mixed are the *endpoints*; the first is the *base*. Weights sum to 1. They may leave the simplex:
(−½, 1½) goes half the way again beyond the second endpoint, as seen from the base.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor, nn

from generalist.core.errors import UserError, unknown
from generalist.core.types import StateTree
from generalist.models import Classifier

TOLERANCE = 1e-9
"""How far from 1 a sum of weights may be."""

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True, eq=False)
class MergeWeights:
    """The weights of a mixture.

    Args:
        each: The weight of every endpoint, the base first; they sum to 1.
        modules: Weights of their own for some modules, by the names of `module_groups`.
        remeasured: An endpoint that counts as any other mixture: its BatchNorm statistics are measured anew.
    """

    each: Mapping[str, float]
    modules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    remeasured: bool = False

    def __post_init__(self) -> None:
        for weights in (self.each, *self.modules.values()):
            total = sum(weights.values())
            if not abs(total - 1) <= TOLERANCE:  # so written that NaN fails too
                listed = ", ".join(f"{name}={value:g}" for name, value in weights.items())
                raise UserError(f"weights must sum to 1, got {listed} (sum {total:g})")
        for name, weights in self.modules.items():
            if list(weights) != list(self.each):
                raise UserError(f"module {name!r} has weights of {', '.join(weights)}, not of {', '.join(self.each)}")

    def __str__(self) -> str:
        """0.7 linf + 0.3 natural; fc: 0.2 linf + 0.8 natural"""
        own = [f"{module}: {_sum_text(weights)}" for module, weights in self.modules.items()]
        return "; ".join([_sum_text(self.each), *own])

    def of(self, module: str) -> Mapping[str, float]:
        """The weights of a module."""
        return self.modules.get(module, self.each)

    def key(self, modules: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        """What tells mixtures of a network with these modules apart, however they are written."""
        return tuple(tuple(self.of(module).values()) for module in modules) or (tuple(self.each.values()),)

    @property
    def endpoint(self) -> str | None:
        """The endpoint that this is, if it is one and nothing else."""
        if self.modules or self.remeasured:
            return None
        return next((name for name, weight in self.each.items() if weight == 1 and self._only(name)), None)

    def _only(self, name: str) -> bool:
        return all(weight == 0 for other, weight in self.each.items() if other != name)

    @property
    def involved(self) -> list[str]:
        """The endpoints that any module takes something from."""
        rows = (self.each, *self.modules.values())
        return [name for name in self.each if any(weights[name] != 0 for weights in rows)]

    def away_from_base(self, modules: Sequence[str] = ()) -> float:
        """The share of other endpoints than the base, as a mean over the modules."""
        base = next(iter(self.each))
        shares = [sum(abs(w) for name, w in self.of(module).items() if name != base) for module in modules or [""]]
        return sum(shares) / len(shares)


def _sum_text(weights: Mapping[str, float]) -> str:
    terms = [f"{weight:.3g} {name}".replace("-", "−", weight < 0) for name, weight in weights.items() if weight != 0]
    return " + ".join(terms).replace("+ −", "− ")


def completed(weights: Mapping[str, float], endpoints: Sequence[str]) -> dict[str, float]:
    """The weights of all endpoints; those not given are 0, and the base takes the rest unless it is given.

    Args:
        weights: By endpoint.
        endpoints: All of them, the base first.
    """
    for name in weights:
        if name not in endpoints:
            raise unknown("endpoint", name, endpoints)
    base, *others = endpoints
    found = {name: float(weights.get(name, 0.0)) for name in others}
    return {base: float(weights.get(base, 1 - sum(found.values()))), **found}


def merge(
    trees: Mapping[str, StateTree], weights: MergeWeights, *, groups: Mapping[str, Sequence[str]] | None = None
) -> StateTree:
    """Σ w_e·θ_e by tensor name, computed in float64 and returned on the CPU in the types of the base.

    Args:
        trees: The tensors of every endpoint by name, the base first.
        weights: Of the same endpoints.
        groups: The tensors of each module (`module_groups`), for weights that differ between modules.

    Returns:
        Tensors of their own. Integers (BatchNorm's counters) are the base's; where an endpoint has all the weight, its
        tensors come back bit for bit.
    """
    base = next(iter(trees.values()))
    for name, tree in trees.items():
        check_alike(base, tree, f"endpoint {name!r}")
    of = {tensor: module for module, tensors in (groups or {}).items() for tensor in tensors}
    for module in weights.modules:
        if module not in (groups or {}):
            raise unknown("module", module, groups or {})
    return {
        name: _mixed([(tree[name], weights.of(of.get(name, ""))[endpoint]) for endpoint, tree in trees.items()])
        for name in base
    }


def _mixed(parts: Sequence[tuple[Tensor, float]]) -> Tensor:
    base = parts[0][0].detach().cpu()
    if not base.is_floating_point():
        return base.clone()
    total = torch.zeros(base.shape, dtype=torch.float64)
    for tensor, weight in parts:
        if weight != 0:  # an endpoint that is left out must not bring its infinities in
            total.add_(tensor.detach().cpu().double(), alpha=weight)
    return total.to(base.dtype)


def check_alike(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], what: str) -> None:
    """Refuse tensors that cannot be paired by name, shape and type."""
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        found = [
            None if name not in tree else (tuple(tree[name].shape), str(tree[name].dtype)) for tree in (ours, theirs)
        ]
        if found[0] != found[1]:
            here, there = (
                "none" if one is None else f"{list(one[0])} in {one[1].removeprefix('torch.')}" for one in found
            )
            raise UserError(f"{what} cannot be mixed with the base: tensor {name!r} is {there}, the base's is {here}")


def module_groups(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The modules of a network in their order, each with the names of its tensors in the model's `state_dict`.

    Modules are the network's top-level children (where there is only one, that one's children); a normalisation goes
    with the child before it, and a tensor of no child is a module by itself.
    """
    root, prefix = (model.network, "network.") if isinstance(model, Classifier) else (model, "")
    tensors = [name.removeprefix(prefix) for name in model.state_dict() if name.startswith(prefix)]
    while len(heads := {name.partition(".")[0] for name in tensors}) == 1:
        (only,) = heads
        if only in tensors:
            break
        root, prefix = root.get_submodule(only), f"{prefix}{only}."
        tensors = [name.partition(".")[2] for name in tensors]
    children = dict(root.named_children())
    home: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for name in tensors:
        head = name.partition(".")[0]
        if head not in home:
            alone = not groups or not isinstance(children.get(head), _NORMS)
            home[head] = head if alone else list(groups)[-1]
        groups.setdefault(home[head], []).append(f"{prefix}{name}")
    return {name: tuple(found) for name, found in groups.items()}


def lattice(endpoints: Sequence[str], *, points: int, beyond: Fraction | int = 1) -> list[dict[str, float]]:
    """Evenly spaced mixtures base + Σ a_i·(e_i − base) with a_i ≥ 0 and Σ a_i ≤ `beyond`, and the endpoints themselves.

    The step is the finest, of those that divide `beyond`, that makes at most `points` mixtures. For two endpoints the
    mixtures lie on the line from the base through the other; for three on a triangle, and so on.

    Args:
        endpoints: Their names, the base first; at least two.
        points: How many mixtures at the most, endpoints included.
        beyond: How far to go from the base, in distances to an endpoint; 1 is the simplex.

    Returns:
        Weights by endpoint: first the endpoints, then the others by their distance from the base.
    """
    others, far = len(endpoints) - 1, Fraction(beyond)
    if others < 1 or points < len(endpoints) or far < 1:
        raise UserError(
            f"a lattice needs 2 endpoints, as many points and beyond ≥ 1, got {len(endpoints)}, {points}, {far}"
        )
    steps = max(m for m in range(points) if _count(m, others, far) <= points)
    step = far / max(1, steps)
    ends = [tuple(Fraction(int(i == place)) for i in range(others)) for place in range(-1, others)]
    inner = [tuple(step * part for part in parts) for parts in _parts(others, steps)]
    found = dict.fromkeys([*ends, *sorted(inner, key=lambda shares: (sum(shares), [-share for share in shares]))])
    return [dict(zip(endpoints, map(float, (1 - sum(shares), *shares)), strict=True)) for shares in found]


def _count(steps: int, others: int, beyond: Fraction) -> int:
    """Points of the lattice with so many steps to its edge, and the endpoints that are not among them."""
    aligned = steps > 0 and (steps / beyond).denominator == 1
    return math.comb(steps + others, others) + (0 if aligned else others)


def _parts(places: int, most: int) -> Iterator[tuple[int, ...]]:
    """All tuples of so many whole numbers ≥ 0 that sum to `most` or less."""
    if places == 0:
        yield ()
        return
    for first in range(most + 1):
        for rest in _parts(places - 1, most - first):
            yield (first, *rest)
