"""Everything a run depends on besides its recipe: saved and loaded as a whole, whichever rank trains which learner."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.types import LossTerms, StateTree
from generalist.distributed import ranks
from generalist.mixing import WHOLE, Mix
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
    `owner` are digests of recipe and data; checkpoints with other digests are refused. `parts` are the tensors, by
    name, of each part of the network that is mixed with weights of its own; together they are all tensors.
    """

    def __init__(
        self,
        learners: list[Learner],
        global_model: nn.Module,
        *,
        step: int = 0,
        parts: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.owner: dict[str, str] = {}
        self.learners = {learner.name: learner for learner in learners}
        self.global_model = global_model
        start = state_tree(global_model)
        # the order of the tensors is that in which ranks add them up: it must be the same everywhere, as no set's is
        self.mixes = {
            part: Mix(
                {key: start[key] for key in keys}, [a.name for a in learners if any(key in a.own for key in keys)]
            )
            for part, keys in ((part, list(keys)) for part, keys in (parts or {WHOLE: start}).items())
        }
        self.step = step
        self.tallies = {name: Tally() for name in self.learners}
        self.regret = Regret()
        self.seconds = self.cpu_seconds = 0.0
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
            package |= {f"share/{key}": tensor for key, tensor in self._share(name).items()}
            package |= {f"tally/{key}": tensor for key, tensor in tally.sums.items()}
            values["tally"] = tally.count
        received = ranks.hand_over(package, values, source=source, to=list(to), purpose=purpose)
        if received is not None:
            package, values = received
            self.learners[name].load(strip_prefix(package, "learner/"), values["learner"])
            copy_tree_(self._share(name), strip_prefix(package, "share/"))
            self.tallies[name] = Tally(values["tally"], strip_prefix(package, "tally/"))

    def _share(self, name: str) -> StateTree:
        """m_a: the learner's share of θ_g in all parts."""
        shares = [mix.shares[name] for mix in self.mixes.values() if name in mix.shares]
        return {key: tensor for share in shares for key, tensor in share.items()}

    def show_model(self, name: str) -> nn.Module:
        """The learner's model as it is mixed now, on every rank."""
        learner = self.learners[name]
        tensors = [*learner.own.values(), *(learner.average or {}).values()]
        ranks.broadcast_(tensors, source=self._ranks(name)[0], purpose="evaluation")
        return learner.mixed_model()

    # The global learner

    @property
    def trees(self) -> dict[str, StateTree]:
        """w_a of every learner in `led_names`."""
        return {name: self.learners[name].mixed for name in self.led_names()}

    def mix_(self, *, weights: Mapping[str, Mapping[str, float]], decay: float) -> None:
        """One step of the running average, with γ by part of the network and learner."""
        trees = self.trees
        for part, mix in self.mixes.items():
            mix.accumulate_(trees, weights=weights[part], decay=decay)

    def materialise_global_(self) -> nn.Module:
        """Write θ_g = D·θ⁰ + Σ m_a into the global model, by one all-reduce; all ranks call this together."""
        led = self.led_names()
        totals = {part: mix.total(led) for part, mix in self.mixes.items()}
        ranks.all_reduce_([tensor for total in totals.values() for tensor in total.values()], purpose="mixing")
        mine = {part: self._integers(mix) for part, mix in self.mixes.items() if mix.leader in led}
        integers = {part: found for gathered in ranks.all_gather(mine) for part, found in gathered.items()}
        made = {part: mix.assembled(totals[part], integers[part]) for part, mix in self.mixes.items()}
        copy_tree_(state_tree(self.global_model), {key: t for part in made.values() for key, t in part.items()})
        return self.global_model

    def _integers(self, mix: Mix) -> StateTree:
        """What is not averaged (BatchNorm's counters), as the learner has it that weighs most."""
        mixed = self.learners[mix.leader].mixed
        return {key: mixed[key] for key, tensor in mix.start.items() if not tensor.is_floating_point()}

    def parameter_trees(self) -> tuple[dict[str, StateTree], StateTree]:
        """Parameters only, of the learners and of the global model as last materialised.

        What a learner does not train is that of the global model: it did not drift.
        """
        names = [name for name, _ in self.global_model.named_parameters()]
        center = state_tree(self.global_model)
        learners = {
            n: {key: learner.own.get(key, center[key]) for key in names} for n, learner in self.learners.items()
        }
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
        parts = {f"learner/{name}": learner.save() for name, learner in self.learners.items()}
        parts |= {place: mix.save() for place, mix in self._placed_mixes().items()}
        parts |= {f"frozen/{name}": (tree, {}) for name, tree in self._frozen_trees().items()}
        for prefix, (part_tensors, part_values) in parts.items():
            tensors |= {f"{prefix}/{key}": tensor for key, tensor in part_tensors.items()}
            values[prefix] = part_values
        for name, tally in self.tallies.items():
            tensors |= {f"tally/{name}/{key}": value for key, value in tally.sums.items()}
        values["tallies"] = {name: tally.count for name, tally in self.tallies.items()}
        values |= {"regret": asdict(self.regret), "seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        save_checkpoint(folder, self.step, tensors, {"owner": self.owner, "state": values})

    def _placed_mixes(self) -> dict[str, Mix]:
        """The mixes by their place in a checkpoint."""
        if len(self.mixes) == 1:
            return {"mix": next(iter(self.mixes.values()))}
        return {f"mix-{index}": mix for index, mix in enumerate(self.mixes.values())}

    def _frozen_trees(self) -> dict[str, StateTree]:
        """What learners do not train, each tensor once: under the first learner that has it."""
        seen: set[int] = set()
        trees = {}
        for name, learner in self.learners.items():
            new = {key: tensor for key, tensor in learner.frozen_tree.items() if tensor.data_ptr() not in seen}
            seen |= {tensor.data_ptr() for tensor in new.values()}
            if new:
                trees[name] = new
        return trees

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
        for place, mix in self._placed_mixes().items():
            mix.load(strip_prefix(tensors, f"{place}/"), state[place])
        for name, tree in self._frozen_trees().items():
            copy_tree_(tree, strip_prefix(tensors, f"frozen/{name}/"))
        for name in self.tallies:
            self.tallies[name] = self._tally(name, state["tallies"][name], strip_prefix(tensors, f"tally/{name}/"))
        self.regret, self.seconds = Regret(**state["regret"]), state["seconds"]
        self.cpu_seconds = state.get("cpu_seconds", 0.0)  # older checkpoints do not have it

    def _tally(self, name: str, count: int, sums: Mapping[str, Tensor]) -> Tally:
        device = self.learners[name].device
        return Tally(count, {key: tensor.to(device) for key, tensor in sums.items()})
