"""The papers' theory as measurements: task regret (Theorem 1) and drift of the learners (Theorem 2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from generalist.core.types import StateTree

CONFIDENCE = 0.05  # δ of Theorem 1


@dataclass
class Regret:
    """Each task's loss summed over its steps, and the best epoch's mean: R_T ≈ Σ ℓ − T·best, averaged over tasks."""

    total: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    def observe(self, task: str, *, mean_loss: float, steps: int) -> None:
        self.total[task] = self.total.get(task, 0.0) + mean_loss * steps
        self.steps[task] = self.steps.get(task, 0) + steps
        self.best[task] = min(self.best.get(task, math.inf), mean_loss)

    def record(self) -> dict[str, Any]:
        """R_T/T per task and in the mean, and the right-hand side of Theorem 1 with δ = 0.05, per step."""
        if not self.total:
            return {}
        per_task = {task: self.total[task] / self.steps[task] - self.best[task] for task in self.total}
        regret = sum(per_task.values()) / len(per_task)
        comparator = sum(self.best.values()) / len(self.best)
        horizon = max(self.steps.values())
        slack = 2 * math.sqrt(2 / horizon * math.log(1 / CONFIDENCE))
        return {"tasks": per_task, "mean": regret, "bound": comparator + regret + slack}


@torch.no_grad()
def drift(trees: Mapping[str, StateTree], center: StateTree, weights: Mapping[str, float]) -> dict[str, Any]:
    """Σ γ_a‖θ_a − θ̄_g‖² over the parameters, each learner's distance, and pairwise distances and cosines of θ_a − θ̄_g.

    Names of buffers (running statistics) are not parameters and are expected to be left out by the caller.
    """
    offsets = {name: _flat(tree) - _flat(center) for name, tree in trees.items()}
    record: dict[str, Any] = {
        "term": sum(weights[name] * offset.square().sum().item() for name, offset in offsets.items()),
        "from_global": {name: offset.norm().item() for name, offset in offsets.items()},
    }
    pairs = list(combinations(offsets, 2))
    record["distance"] = {f"{a}|{b}": (offsets[a] - offsets[b]).norm().item() for a, b in pairs}
    record["cosine"] = {f"{a}|{b}": _cosine(offsets[a], offsets[b]) for a, b in pairs}
    return record


def _flat(tree: StateTree) -> Tensor:
    return torch.cat([tensor.reshape(-1).float() for tensor in tree.values()])


def _cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a, b, dim=0).item()
