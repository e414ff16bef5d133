"""Everything a run depends on besides its recipe: saved whole, loaded whole."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from generalist.core.types import LossTerms, StateTree
from generalist.learner import Learner, below, copy_tree_, state_tree
from generalist.mixing import Mix
from generalist.training.checkpoint import latest_checkpoint, save_checkpoint
from generalist.training.instruments import Regret


@dataclass
class Tally:
    """Sums over the epoch so far, on the device, in float64 where the device has it."""

    count: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, terms: LossTerms) -> None:
        self.count += 1
        for name, value in {"loss": terms.total, **terms.parts}.items():
            value = value.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()

    def means(self) -> dict[str, float]:
        return {name: (value / self.count).item() for name, value in self.sums.items()}


class TrainState:
    """Learners, mix, step, and the running measurements. `global_model` is a place to put θ_g in when it is needed."""

    def __init__(self, learners: list[Learner], global_model: nn.Module, *, step: int = 0) -> None:
        self.learners = {learner.name: learner for learner in learners}
        self.global_model = global_model
        self.mix = Mix(state_tree(global_model), list(self.learners))
        self.step = step
        self.tallies = {name: Tally() for name in self.learners}
        self.regret = Regret()
        self.seconds = 0.0

    @property
    def trees(self) -> dict[str, StateTree]:
        """w_a of every learner."""
        return {name: learner.mixed for name, learner in self.learners.items()}

    def materialise_global_(self) -> nn.Module:
        """Put θ_g = D·θ⁰ + Σ m_a into the global model."""
        copy_tree_(state_tree(self.global_model), self.mix.state(self.trees))
        return self.global_model

    def parameter_trees(self) -> tuple[dict[str, StateTree], StateTree]:
        """Parameters only, of the learners and of the global model as last materialised."""
        names = [name for name, _ in self.global_model.named_parameters()]
        center = state_tree(self.global_model)
        learners = {n: {key: learner.tree[key] for key in names} for n, learner in self.learners.items()}
        return learners, {key: center[key] for key in names}

    def save(self, folder: Path) -> None:
        tensors: StateTree = {}
        values: dict[str, Any] = {}
        parts = {f"learner/{name}": learner.save() for name, learner in self.learners.items()} | {
            "mix": self.mix.save()
        }
        for prefix, (part_tensors, part_values) in parts.items():
            tensors |= {f"{prefix}/{key}": tensor for key, tensor in part_tensors.items()}
            values[prefix] = part_values
        for name, tally in self.tallies.items():
            tensors |= {f"tally/{name}/{key}": value for key, value in tally.sums.items()}
        values["tallies"] = {name: tally.count for name, tally in self.tallies.items()}
        values |= {"regret": asdict(self.regret), "seconds": self.seconds}
        save_checkpoint(folder, self.step, tensors, {"state": values})

    def load(self, folder: Path) -> bool:
        """Take up the newest whole checkpoint; False where there is none."""
        found = latest_checkpoint(folder)
        if found is None:
            return False
        tensors, values = found
        self.step, state = values["step"], values["state"]
        for name, learner in self.learners.items():
            learner.load(below(tensors, f"learner/{name}/"), state[f"learner/{name}"])
        self.mix.load(below(tensors, "mix/"), state["mix"])
        for name in self.tallies:
            device = self.learners[name].device
            sums = {key: tensor.to(device) for key, tensor in below(tensors, f"tally/{name}/").items()}
            self.tallies[name] = Tally(state["tallies"][name], sums)
        self.regret, self.seconds = Regret(**state["regret"]), state["seconds"]
        return True
