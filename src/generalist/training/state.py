"""Everything a run depends on besides its recipe: saved and loaded as a whole, whichever rank trains which learner."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.types import LossTerms, StateTree
from generalist.distributed import ranks
from generalist.mixing import Mix
from generalist.training.checkpoint import latest_checkpoint, save_checkpoint
from generalist.training.instruments import Regret
from generalist.training.learner import Learner, copy_tree_, state_tree, strip_prefix
from generalist.training.placement import Phase


@dataclass
class Tally:
    """Sums of the loss terms over the steps of the epoch so far, in float32, on the device."""

    count: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, terms: LossTerms) -> None:
        """Count the loss terms of one step."""
        self.count += 1
        for name, value in {"loss": terms.total, **terms.parts}.items():
            value = value.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()

    def means(self) -> dict[str, float]:
        """Mean per term."""
        return {name: (value / self.count).item() for name, value in self.sums.items()}


class TrainState:
    """Learners, mix, step, and the running measurements. `materialise_global_` writes θ_g into `global_model`.

    Every rank has all learners as objects. Those that it does not train are out of date until they are handed over.
    `owner` are digests of recipe and data; checkpoints with other digests are refused.
    """

    def __init__(self, learners: list[Learner], global_model: nn.Module, *, step: int = 0) -> None:
        self.owner: dict[str, str] = {}
        self.learners = {learner.name: learner for learner in learners}
        self.global_model = global_model
        self.mix = Mix(state_tree(global_model), list(self.learners))
        self.step = step
        self.tallies = {name: Tally() for name in self.learners}
        self.regret = Regret()
        self.seconds = 0.0
        self.phases: list[Phase] = []
        self._phase: Phase | None = None
        self._teams: dict[tuple[int, ...], ranks.Team] = {}

    # Which rank trains which learner

    def share_(self, phases: list[Phase]) -> None:
        """Place the learners as the phases say. All ranks call this together, with all learners up to date."""
        self.phases, self._phase = phases, None
        self._teams = ranks.make_teams([placed for phase in phases for placed in phase.ranks.values()])

    def enter_epoch_(self, epoch: int) -> None:
        """Hand learners over to other ranks where a new phase begins."""
        phase = next((p for p in self.phases if p.first_epoch <= epoch < p.first_epoch + p.epochs), None)
        if phase is None or phase is self._phase:
            return
        before, self._phase = self._phase, phase
        for name, learner in self.learners.items():
            placed = phase.ranks[name]
            if before is not None and before.ranks[name] != placed and self._was_active(name, before):
                self._hand_over(name, before.ranks[name][0], placed, purpose="placement")
            if ranks.rank() in placed:
                learner.join_(self._teams[placed])

    def _was_active(self, name: str, last: Phase) -> bool:
        """Whether it was trained up to this phase. If not it has no share of θ_g, and is reset before it is trained."""
        return any(name in phase.costs for phase in self.phases if phase.first_epoch <= last.first_epoch)

    def _ranks(self, name: str) -> tuple[int, ...]:
        return (0,) if self._phase is None else self._phase.ranks[name]

    def is_local(self, name: str) -> bool:
        """Whether this rank trains the learner, alone or in a team."""
        return ranks.rank() in self._ranks(name)

    def led_names(self) -> list[str]:
        """The learners that this rank is the first to train: it reports and sends them."""
        return [name for name in self.learners if self._ranks(name)[0] == ranks.rank()]

    def _hand_over(self, name: str, source: int, to: Iterable[int], *, purpose: str) -> None:
        """Send a learner with its whole state, its share of θ_g and its measurements."""
        package: StateTree = {}
        values: dict[str, Any] = {}
        if ranks.rank() == source:
            tensors, values["learner"] = self.learners[name].save()
            tally = self.tallies[name]
            package |= {f"learner/{key}": tensor for key, tensor in tensors.items()}
            package |= {f"share/{key}": tensor for key, tensor in self.mix.shares[name].items()}
            package |= {f"tally/{key}": tensor for key, tensor in tally.sums.items()}
            values["tally"] = tally.count
        received = ranks.hand_over(package, values, source=source, to=list(to), purpose=purpose)
        if received is not None:
            package, values = received
            self.learners[name].load(strip_prefix(package, "learner/"), values["learner"])
            copy_tree_(self.mix.shares[name], strip_prefix(package, "share/"))
            self.tallies[name] = Tally(values["tally"], strip_prefix(package, "tally/"))

    def show_model(self, name: str) -> nn.Module:
        """The learner's model as it is now, on every rank."""
        learner = self.learners[name]
        ranks.broadcast_(list(learner.tree.values()), source=self._ranks(name)[0], purpose="evaluation")
        return learner.model

    # The global learner

    @property
    def trees(self) -> dict[str, StateTree]:
        """w_a of every learner in `led_names`."""
        return {name: self.learners[name].mixed for name in self.led_names()}

    def materialise_global_(self) -> nn.Module:
        """Write θ_g = D·θ⁰ + Σ m_a into the global model, by one all-reduce; all ranks call this together."""
        total = self.mix.total(self.led_names())
        ranks.all_reduce_(list(total.values()), purpose="mixing")
        leader = self.mix.leader
        mine = (
            {k: v for k, v in self.learners[leader].mixed.items() if k not in total}
            if leader in self.led_names()
            else None
        )
        integers = next(found for found in ranks.all_gather(mine) if found is not None)
        copy_tree_(state_tree(self.global_model), self.mix.assembled(total, integers))
        return self.global_model

    def parameter_trees(self) -> tuple[dict[str, StateTree], StateTree]:
        """Parameters only, of the learners and of the global model as last materialised."""
        names = [name for name, _ in self.global_model.named_parameters()]
        center = state_tree(self.global_model)
        learners = {n: {key: learner.tree[key] for key in names} for n, learner in self.learners.items()}
        return learners, {key: center[key] for key in names}

    def take_tallies(self) -> dict[str, tuple[dict[str, float], int]]:
        """Mean losses and number of steps per learner since the last call, from all ranks; the sums are cleared."""
        mine = {n: (self.tallies[n].means(), self.tallies[n].count) for n in self.led_names() if self.tallies[n].count}
        self.tallies = {name: Tally() for name in self.learners}
        everyone = {name: row for rows in ranks.all_gather(mine) for name, row in rows.items()}
        return {name: everyone[name] for name in self.learners if name in everyone}

    # On disk

    def save(self, folder: Path) -> None:
        """Write one checkpoint, on the main rank, that any number of ranks can resume from."""
        for name in self._phase.costs if self._phase is not None else ():
            if self._ranks(name)[0] != 0:
                self._hand_over(name, self._ranks(name)[0], [0], purpose="checkpoint")
        if ranks.is_main():
            self._write(folder)
        ranks.barrier()

    def _write(self, folder: Path) -> None:
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
        save_checkpoint(folder, self.step, tensors, {"owner": self.owner, "state": values})

    def load(self, folder: Path) -> bool:
        """Load the newest complete checkpoint; False where there is none."""
        found = latest_checkpoint(folder, owner=self.owner)
        if found is None:
            return False
        tensors, values = found
        try:
            self._take(tensors, values["step"], values["state"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"the checkpoint of step {values['step']} in {folder} does not fit this run ({what})"
            ) from None
        return True

    def _take(self, tensors: StateTree, step: int, state: Mapping[str, Any]) -> None:
        self.step = step
        for name, learner in self.learners.items():
            learner.load(strip_prefix(tensors, f"learner/{name}/"), state[f"learner/{name}"])
        self.mix.load(strip_prefix(tensors, "mix/"), state["mix"])
        for name in self.tallies:
            self.tallies[name] = self._tally(name, state["tallies"][name], strip_prefix(tensors, f"tally/{name}/"))
        self.regret, self.seconds = Regret(**state["regret"]), state["seconds"]

    def _tally(self, name: str, count: int, sums: Mapping[str, Tensor]) -> Tally:
        device = self.learners[name].device
        return Tally(count, {key: tensor.to(device) for key, tensor in sums.items()})
