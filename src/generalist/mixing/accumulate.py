"""The exact linear mix. θ_g ← d·θ_g + (1−d)·Σ γ_a·w_a is linear, so each learner keeps its own share

    m_a ← d·m_a + (1−d)·γ_a·w_a,    D ← d·D,    and    θ_g = D·θ⁰ + Σ m_a

at any moment: nothing is exchanged until θ_g is really needed. Tensors are paired by name; integers are copied.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from generalist.core.types import StateTree


class Mix:
    """The global learner θ_g as one accumulator per learner.

    Args:
        start: θ⁰, the tensors that all learners start from, by name.
        names: The learners that are mixed.

    `leader` is the learner that weighed most in the last step; θ_g takes its integers (BatchNorm's counters).

    Example:
        >>> import torch
        >>> from generalist import Mix
        >>> mix = Mix({"w": torch.zeros(1)}, ["linf", "natural"])
        >>> trees = {"linf": {"w": torch.ones(1)}, "natural": {"w": torch.full((1,), 3.0)}}
        >>> mix.accumulate_(trees, weights={"linf": 0.5, "natural": 0.5}, decay=0.9)
        >>> round(mix.state(trees)["w"].item(), 6)  # 0.9·0 + 0.1·(0.5·1 + 0.5·3)
        0.2
    """

    def __init__(self, start: StateTree, names: list[str]) -> None:
        self.start = {name: tensor.clone() for name, tensor in start.items()}
        self._floats = [name for name, tensor in start.items() if tensor.is_floating_point()]
        self.shares = {name: {key: torch.zeros_like(self.start[key]) for key in self._floats} for name in names}
        self.remaining = 1.0  # D
        self.leader = names[0]

    def accumulate_(self, trees: Mapping[str, StateTree], *, weights: Mapping[str, float], decay: float) -> None:
        """One step of the running average, with w_a = trees[a] and γ_a = weights[a].

        Learners that are not in `trees` are left alone: another process adds their shares. Trees may hold more learners
        and more tensors than this mix is of.
        """
        for name in trees:
            if name not in self.shares:
                continue
            share = self.shares[name]
            torch._foreach_mul_(list(share.values()), decay)
            if weights[name] != 0:
                tree = trees[name]
                alpha = (1 - decay) * weights[name]
                torch._foreach_add_(list(share.values()), [tree[key] for key in share], alpha=alpha)
        self.remaining *= decay
        self.leader = max(weights, key=lambda name: weights[name])

    def total(self, names: Iterable[str]) -> StateTree:
        """Σ m_a over these learners, so precise that the order of summation does not show."""
        wide = {k: torch.zeros_like(self.start[k], dtype=_wide(self.start[k])) for k in self._floats}
        for name in names:
            for key, tensor in wide.items() if name in self.shares else ():
                tensor += self.shares[name][key]
        return wide

    def state(self, trees: Mapping[str, StateTree]) -> StateTree:
        """θ_g, in tensors of its own; `trees` as in `accumulate_`."""
        return self.assembled(self.total(self.shares), trees.get(self.leader, {}))

    def assembled(self, total: StateTree, integers: Mapping[str, Tensor]) -> StateTree:
        """θ_g = D·θ⁰ + Σ m_a; `integers` as the leading learner has them."""
        result = {}
        for key, start in self.start.items():
            if key in total:
                result[key] = total[key].add(start.to(total[key]), alpha=self.remaining).to(start.dtype)
            else:
                result[key] = integers[key].clone()
        return result

    def save(self) -> tuple[StateTree, dict[str, Any]]:
        tensors = {f"start/{key}": tensor for key, tensor in self.start.items()}
        for name, share in self.shares.items():
            tensors |= {f"share/{name}/{key}": tensor for key, tensor in share.items()}
        return tensors, {"remaining": self.remaining, "leader": self.leader}

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        for key, tensor in self.start.items():
            tensor.copy_(tensors[f"start/{key}"])
        for name, share in self.shares.items():
            for key, tensor in share.items():
                tensor.copy_(tensors[f"share/{name}/{key}"])
        self.remaining, self.leader = values["remaining"], values["leader"]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # MPS has no float64
