"""A base learner: one model on one task, with its own optimizer, schedule and, if asked, running average."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from generalist.core.rng import Key
from generalist.core.schedules import Schedule
from generalist.core.types import Batch, Loss, LossTerms, Objective, StateTree, step_context
from generalist.distributed.ranks import ALONE, Team, as_part_of, split_evenly
from generalist.objectives import ObjectiveModule, perturbed_weights

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def state_tree(model: nn.Module) -> StateTree:
    """The model's parameters and persistent buffers by name: the live tensors, not copies."""
    return {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}


def copy_tree_(into: StateTree, source: Mapping[str, Tensor]) -> None:
    """Overwrite every tensor of a tree with the one of the same name."""
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(source[name])


class Learner:
    """`step` is the textbook's θ ← Z[∇ loss(batch; θ), τ(e)]; the rest is what a reset or a checkpoint must reach."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        objective: Objective,
        make_optimizer: MakeOptimizer,
        *,
        lr: float,
        schedule: Schedule,
        weight_averaging: bool = False,
        weight_perturbation: float = 0.0,
        clip_norm: float | None = None,
        accumulate: int = 1,
        precision: torch.dtype = torch.float32,
        loss_limit: float = float("inf"),
    ) -> None:
        self.name, self.model, self.objective = name, model, objective
        self.carried = objective if isinstance(objective, ObjectiveModule) else None
        if self.carried is not None:
            self.carried.attach_(model)
        trained = {**dict(model.named_parameters()), **_prefixed("objective/", self.carried)}
        self._trained = {key: parameter for key, parameter in trained.items() if parameter.requires_grad}
        self.optimizer = make_optimizer(list(self._trained.values()))
        self.weight_perturbation = weight_perturbation
        self.lr, self.schedule = lr, schedule
        self.clip_norm, self.accumulate, self.precision = clip_norm, accumulate, precision
        self.loss_limit = loss_limit
        self.tree = state_tree(model)
        self.average: StateTree | None = {k: v.clone() for k, v in self.tree.items()} if weight_averaging else None
        self._buffers = [*model.buffers(), *(self.carried.buffers() if self.carried is not None else ())]
        self._buffers_before = [tensor.clone() for tensor in self._buffers]
        self.bad_steps = 0
        self.device = next(iter(self.tree.values())).device
        self.team = ALONE
        self._parallel: DistributedDataParallel | None = None
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=precision == torch.float16)

    @property
    def mixed(self) -> StateTree:
        """w_a of the mixing formula: the running average where there is one, else the parameters."""
        return self.tree if self.average is None else self.average

    def step(self, batch: Batch, *, progress: Fraction, key: tuple[Key, ...]) -> LossTerms:
        """One optimizer step on the batch; skipped, and counted in `bad_steps`, where the loss is not usable.

        `key` names the random streams that the step draws from.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.schedule(progress)
        _copy_all_(self._buffers_before, self._buffers)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        terms, now = None, step_context(*key, ids=batch.ids, progress=float(progress), extra=batch.extra)
        mine = self.team.rows(len(batch.y))
        our_share = (mine.stop - mine.start) / len(batch.y)
        parts = [part for part in split_evenly(mine, self.accumulate) if part.stop > part.start]
        with as_part_of(self.team, our_share):
            for part in parts:
                share = (part.stop - part.start) / len(batch.y)
                with self.autocast():
                    loss = self.objective(self.model, batch.x[part], batch.y[part], context=now[part])
                ascent = perturbed_weights(
                    self.model, loss, self.weight_perturbation, autocast=self.autocast, buffers=self._buffers
                )
                with ascent, self._gradients_shared(last=part is parts[-1]):
                    with self.autocast():
                        part_terms = self._evaluate(loss)
                    # DistributedDataParallel takes the mean over the team where the sum is wanted
                    self._scaler.scale(part_terms.total * (share * self.team.size)).backward()
                terms = _merge(terms, part_terms, share)
        assert terms is not None
        terms = self._over_the_team_(terms, our_share)
        self._scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self._trained.values(), self.clip_norm or float("inf"))
        finite = torch.isfinite(norm)
        usable = bool(finite & (terms.total < self.loss_limit))
        if usable or (self._scaler.is_enabled() and not finite):  # the scaler skips such a step, and lowers its scale
            self._scaler.step(self.optimizer)
        self._scaler.update()
        if usable:
            self.bad_steps = 0
        else:  # the forward passes have spoilt BatchNorm's statistics already
            _copy_all_(self._buffers, self._buffers_before)
            self.bad_steps += 1
        if self.carried is not None:
            with as_part_of(self.team, our_share):
                self.carried.step_ended_(usable=usable)
        return terms

    def join_(self, team: Team) -> None:
        """Share batches with these ranks from now on; all of them call this together, with the same weights."""
        self.team, self._parallel = team, None
        if team.size > 1:
            task = _Task(self.model, self.carried)
            with warnings.catch_warnings():  # the newest torch has another name for the option, older ones do not
                warnings.simplefilter("ignore", FutureWarning)
                self._parallel = DistributedDataParallel(task, process_group=team.group, broadcast_buffers=False)

    def _gradients_shared(self, *, last: bool) -> AbstractContextManager[Any]:
        """Gradients cross the network once a step, with the last part of the batch."""
        return nullcontext() if self._parallel is None or last else self._parallel.no_sync()

    def _evaluate(self, loss: Loss) -> LossTerms:
        if self._parallel is None:
            return loss()
        self._parallel(loss)
        terms: LossTerms = self._parallel.module.terms
        return terms

    def _over_the_team_(self, terms: LossTerms, share: float) -> LossTerms:
        """The terms of the whole batch; BatchNorm's statistics become the mean of those that the parts have given."""
        if self.team.size == 1:
            return terms
        numbers = torch.stack([terms.total, *terms.parts.values()])
        floats = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        if floats:
            torch._foreach_mul_(floats, share)
            self.team.sum_(floats, purpose="statistics")
        self.team.sum_([numbers], purpose="losses")
        return LossTerms(numbers[0], dict(zip(terms.parts, numbers[1:], strict=True)))

    def end_epoch_(self) -> None:
        if self.carried is not None:
            self.carried.epoch_ended_(self.model)

    def update_average_(self, decay: float) -> None:
        """avg ← d·avg + (1−d)·θ; integers are copied."""
        if self.average is not None:
            ema_(self.average, self.tree, decay)

    def reset_(self, state: Mapping[str, Tensor], *, momentum: bool, averages: bool) -> None:
        """θ ← state, and fresh momentum and averages where the flags say so."""
        copy_tree_(self.tree, state)
        if momentum:
            for parameter in self.model.parameters():
                self.optimizer.state.pop(parameter, None)
        if averages and self.average is not None:
            copy_tree_(self.average, state)
        if self.carried is not None:
            self.carried.model_replaced_(self.model)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)

    def save(self) -> tuple[StateTree, dict[str, Any]]:
        """All that a step depends on: tensors by name, and plain values."""
        tensors = {f"model/{k}": v for k, v in self.tree.items()}
        tensors |= {f"average/{k}": v for k, v in (self.average or {}).items()}
        values: dict[str, Any] = {"bad_steps": self.bad_steps, "scaler": self._scaler.state_dict()}
        if self.carried is not None:
            tensors |= {f"objective/{k}": v for k, v in state_tree(self.carried).items()}
        for name, parameter in self._trained.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{key}/{name}"] = value
        return tensors, values

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        copy_tree_(self.tree, strip_prefix(tensors, "model/"))
        if self.average is not None:
            copy_tree_(self.average, strip_prefix(tensors, "average/"))
        if self.carried is not None:
            copy_tree_(state_tree(self.carried), strip_prefix(tensors, "objective/"))
        self.optimizer.state.clear()
        for path, tensor in tensors.items():
            if path.startswith("optimizer/"):
                _, key, name = path.split("/", 2)
                parameter = self._trained[name]
                # a step counter stays where the optimizer keeps it: on the CPU, of its own type
                placed = tensor.clone() if tensor.dim() == 0 else torch.empty_like(parameter).copy_(tensor)
                self.optimizer.state[parameter][key] = placed
        self.bad_steps = values["bad_steps"]
        self._scaler.load_state_dict(values["scaler"])


def ema_(average: StateTree, tree: StateTree, decay: float) -> None:
    """average ← decay·average + (1−decay)·tree, in place; what is not a float is copied."""
    floats = [name for name, tensor in average.items() if tensor.is_floating_point()]
    torch._foreach_lerp_([average[n] for n in floats], [tree[n] for n in floats], 1 - decay)
    for name, tensor in average.items():
        if not tensor.is_floating_point():
            tensor.copy_(tree[name])


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> StateTree:
    """The tensors whose names begin so, without the beginning."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _prefixed(prefix: str, module: nn.Module | None) -> dict[str, nn.Parameter]:
    return {f"{prefix}{name}": p for name, p in module.named_parameters()} if module is not None else {}


def _copy_all_(into: list[Tensor], source: list[Tensor]) -> None:
    if into:
        torch._foreach_copy_(into, source)


class _Task(nn.Module):
    """A loss as the forward pass of a module, which is what DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, carried: nn.Module | None) -> None:
        super().__init__()
        self.model, self.carried = model, carried

    def forward(self, loss: Loss) -> Tensor:
        self.terms = loss()
        return self.terms.total


def _merge(sum_: LossTerms | None, terms: LossTerms, share: float) -> LossTerms:
    total = terms.total.detach() * share
    parts = {name: value.detach() * share for name, value in terms.parts.items()}
    if sum_ is None:
        return LossTerms(total, parts)
    return LossTerms(sum_.total + total, {name: sum_.parts[name] + value for name, value in parts.items()})
