"""The exact linear mix. θ_g ← d·θ_g + (1−d)·Σ γ_a·w_a is linear, so each learner keeps its own share

    m_a ← d·m_a + (1−d)·γ_a·w_a,    D ← d·D,    and    θ_g = D·θ⁰ + Σ m_a

at any moment: nothing is exchanged until θ_g is really needed. Tensors are paired by name; integers are copied.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from generalist.core.types import StateTree


class Mix:
    """One accumulator a learner. `leader`, whose integers θ_g takes, is the learner that weighed most last."""

    def __init__(self, start: StateTree, names: list[str]) -> None:
        self.start = {name: tensor.clone() for name, tensor in start.items()}
        self._floats = [name for name, tensor in start.items() if tensor.is_floating_point()]
        self.shares = {name: {key: torch.zeros_like(self.start[key]) for key in self._floats} for name in names}
        self.remaining = 1.0  # D
        self.leader = names[0]

    def accumulate_(self, trees: Mapping[str, StateTree], *, weights: Mapping[str, float], decay: float) -> None:
        """One step of the running average, with w_a = trees[a] and γ_a = weights[a]."""
        for name, share in self.shares.items():
            torch._foreach_mul_(list(share.values()), decay)
            if weights[name] != 0:
                tree = trees[name]
                alpha = (1 - decay) * weights[name]
                torch._foreach_add_(list(share.values()), [tree[key] for key in share], alpha=alpha)
        self.remaining *= decay
        self.leader = max(weights, key=lambda name: weights[name])

    def state(self, trees: Mapping[str, StateTree]) -> StateTree:
        """θ_g, in tensors of its own; `trees` as in `accumulate_`."""
        result = {}
        for key, start in self.start.items():
            if key in self.shares[self.leader]:
                result[key] = start * self.remaining
                for share in self.shares.values():
                    result[key] += share[key]
            else:
                result[key] = trees[self.leader][key].clone()
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
