"""A base learner: one model on one task."""

import copy
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from generalist.core.rng import Key
from generalist.core.schedules import Schedule
from generalist.core.types import Batch, Loss, LossTerms, Objective, StateTree, StepContext, step_context
from generalist.distributed.ranks import ALONE, Team, split_evenly
from generalist.distributed.shared_batchnorm import statistics_over
from generalist.objectives import as_module, perturbed_weights

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
    """One model on one task, with its own optimizer, learning-rate schedule and, if asked, running average.

    `step` is θ ← Z[∇ loss(batch; θ), τ(e)] of CVPR Algorithm 1: Z the optimizer, τ the schedule.

    Args:
        name: names the learner in records and error messages.
        model: the network; its parameters are trained in place.
        objective: an `ObjectiveModule`, or any callable `(model, x, y, *, context) -> Loss`.
        make_optimizer: a function from a list of parameters to their optimizer.
        lr: learning rate, before the schedule.
        schedule: a function from the progress of training to a factor of the learning rate.
        weight_averaging: keep a running average of the weights, which is then what is mixed.
        weight_perturbation: γ of adversarial weight perturbation; 0 for none.
        clip_norm: largest norm of the gradient; None for no limit.
        accumulate: number of parts in which a batch goes through the model; the step is the same but for BatchNorm.
        precision: the format of the forward passes under autocast.
        loss_limit: a step with a loss that is not below it is skipped.
        trained: names of the tensors of the model's state that it trains; all if not given. The others have no
            gradient and no optimizer state. Modules of which nothing is trained, or whose running statistics are not,
            run in eval mode.

    Example:
        >>> from fractions import Fraction
        >>> import torch
        >>> from generalist import Batch, Learner, LossTerms, build_model
        >>> def natural(model, x, y, *, context):
        ...     return lambda: LossTerms(torch.nn.functional.cross_entropy(model(x), y))
        >>> model = build_model("small_cnn", classes=2, channels=1, size=8, width=4)
        >>> learner = Learner("mine", model, natural, torch.optim.SGD, lr=0.1, schedule=lambda progress: 1.0)
        >>> batch = Batch(x=torch.rand(4, 1, 8, 8), y=torch.tensor([0, 1, 0, 1]), ids=torch.arange(4))
        >>> losses = [learner.step(batch, progress=Fraction(step, 10), key=(step,)).total for step in range(10)]
        >>> bool(losses[-1] < losses[0])
        True
    """

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
        trained: Collection[str] | None = None,
    ) -> None:
        self.name, self.model, self.objective = name, model, as_module(objective)
        self.tree = state_tree(model)
        self.own = {key: tensor for key, tensor in self.tree.items() if trained is None or key in trained}
        self._resting = _freeze_others_(model, self.own)
        self.objective.attach_(model)
        beside = {f"objective/{key}": parameter for key, parameter in self.objective.named_parameters()}
        parameters = {**dict(model.named_parameters()), **beside}
        self._trained = {key: parameter for key, parameter in parameters.items() if parameter.requires_grad}
        self.optimizer = make_optimizer(list(self._trained.values()))
        self.weight_perturbation = weight_perturbation
        self.lr, self.schedule = lr, schedule
        self.clip_norm, self.accumulate, self.precision = clip_norm, accumulate, precision
        self.loss_limit = loss_limit
        self.average: StateTree | None = {k: v.clone() for k, v in self.own.items()} if weight_averaging else None
        kept = [tensor for key, tensor in model.named_buffers() if key in self.own or key not in self.tree]
        self._buffers = [*kept, *self.objective.buffers()]
        self._buffers_before = [tensor.clone() for tensor in self._buffers]
        self.bad_steps = 0
        self.device = next(iter(self.tree.values())).device
        self.team = ALONE
        self._parallel: DistributedDataParallel | None = None
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=precision == torch.float16)

    @property
    def mixed(self) -> StateTree:
        """w_a of the mixing formula, of what is trained: the running average where there is one, else the tensors."""
        return self.own if self.average is None else self.average

    @property
    def frozen_tree(self) -> StateTree:
        """The tensors that it does not train. Learners with the same window share them."""
        return {key: tensor for key, tensor in self.tree.items() if key not in self.own}

    def mixed_model(self) -> nn.Module:
        """The model with w_a as its weights: itself, or a copy with the running average."""
        if self.average is None:
            return self.model
        averaged = copy.deepcopy(self.model)
        copy_tree_({key: tensor for key, tensor in state_tree(averaged).items() if key in self.average}, self.average)
        return averaged

    def step(self, batch: Batch, *, progress: Fraction, key: tuple[Key, ...]) -> LossTerms:
        """One optimizer step on the batch; skipped, and counted in `bad_steps`, where loss or gradient is not usable.

        Args:
            batch: the whole batch; where a team shares it, every rank is given all of it and takes its own rows.
            progress: how much of training is done, 0 to 1, as an exact fraction.
            key: names the random streams that the step draws from; the same key gives the same step.

        Returns:
            The loss of the whole batch before the step, and its terms: detached, on the device.
        """
        rows = self.team.rows(len(batch.y))
        share = (rows.stop - rows.start) / len(batch.y)
        context = step_context(
            *key, ids=batch.ids, progress=float(progress), extra=batch.extra, team=self.team, share=share
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.schedule(progress)
        _copy_all_(self._buffers_before, self._buffers)
        terms = self._forward_backward_(batch, rows, context)
        usable = self._apply_or_skip_(terms)
        self._update_statistics_(usable, context)
        return terms

    def _forward_backward_(self, batch: Batch, rows: slice, context: StepContext) -> LossTerms:
        """The gradient of the batch, into `.grad`, and its loss. This rank's rows go through in `accumulate` parts."""
        self.model.train()
        for module in self._resting:
            module.training = False
        self.optimizer.zero_grad(set_to_none=True)
        terms = None
        parts = [part for part in split_evenly(rows, self.accumulate) if part.stop > part.start]
        for part in parts:
            share = (part.stop - part.start) / len(batch.y)
            with self.autocast():
                loss = self.objective(self.model, batch.x[part], batch.y[part], context=context[part])
            ascent = perturbed_weights(
                self.model, loss, self.weight_perturbation, context=context, autocast=self.autocast,
                buffers=self._buffers,
            )  # fmt: skip
            together = statistics_over(self.team, self.model, self.objective)
            with together, ascent, self._gradients_shared(last=part is parts[-1]):
                with self.autocast():
                    part_terms = self._evaluate(loss)
                # DistributedDataParallel takes the mean over the team where the sum is wanted
                self._scaler.scale(part_terms.total * (share * self.team.size)).backward()
            terms = _merge(terms, part_terms, share)
        assert terms is not None
        return self._over_the_team(terms)

    def _apply_or_skip_(self, terms: LossTerms) -> bool:
        """Clip the gradient and let the optimizer step, unless loss or gradient is not usable; whether it was."""
        self._scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self._trained.values(), self.clip_norm or float("inf"))
        finite = torch.isfinite(norm)
        usable = bool(finite & (terms.total < self.loss_limit))
        if usable or (self._scaler.is_enabled() and not finite):  # the scaler skips such a step, and lowers its scale
            self._scaler.step(self.optimizer)
        self._scaler.update()
        return usable

    def _update_statistics_(self, usable: bool, context: StepContext) -> None:
        """Buffers (BatchNorm, running errors) of a usable step ← their mean over the team; else as they were before."""
        if usable:
            self.bad_steps = 0
            floats = [buffer for buffer in self._buffers if buffer.is_floating_point()]
            if self.team.size > 1 and floats:
                torch._foreach_mul_(floats, context.share)
                self.team.all_reduce_(floats, purpose="statistics")
        else:
            self.bad_steps += 1
            _copy_all_(self._buffers, self._buffers_before)
        self.objective.step_ended_(usable=usable, context=context)

    def join_(self, team: Team) -> None:
        """Share every batch with the team from now on. All its ranks call this together, with the same weights."""
        self.team, self._parallel = team, None
        if team.size > 1:
            task = _Task(self.model, self.objective)
            with warnings.catch_warnings():  # the newest torch has another name for the option, older ones do not
                warnings.simplefilter("ignore", FutureWarning)
                self._parallel = DistributedDataParallel(task, process_group=team.group, broadcast_buffers=False)

    def _gradients_shared(self, *, last: bool) -> AbstractContextManager[Any]:
        """Gradients are all-reduced once per step, with the last part of the batch."""
        return nullcontext() if self._parallel is None or last else self._parallel.no_sync()

    def _evaluate(self, loss: Loss) -> LossTerms:
        if self._parallel is None:
            return loss()
        self._parallel(loss)
        terms: LossTerms = self._parallel.module.terms
        return terms

    def _over_the_team(self, terms: LossTerms) -> LossTerms:
        """The terms of this rank's rows → those of the whole batch."""
        if self.team.size == 1:
            return terms
        numbers = torch.stack([terms.total, *terms.parts.values()])
        self.team.all_reduce_([numbers], purpose="losses")
        return LossTerms(numbers[0], dict(zip(terms.parts, numbers[1:], strict=True)))

    def end_epoch_(self) -> None:
        """Call the objective's hook for the end of an epoch."""
        self.objective.epoch_ended_(self.model)

    def update_average_(self, decay: float) -> None:
        """avg ← d·avg + (1−d)·θ; integers are copied."""
        if self.average is not None:
            ema_(self.average, self.own, decay)

    def reset_(self, state: Mapping[str, Tensor], *, momentum: bool, averages: bool) -> None:
        """θ ← state; momentum is cleared and the running average set to `state` where the flags say so."""
        copy_tree_(self.tree, state)
        if momentum:
            for parameter in self.model.parameters():
                self.optimizer.state.pop(parameter, None)
        if averages and self.average is not None:
            copy_tree_(self.average, state)
        self.objective.model_replaced_(self.model)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that forward passes run in: `precision`, or nothing for float32."""
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)

    def save(self) -> tuple[StateTree, dict[str, Any]]:
        """Everything that a step depends on but for the frozen tensors: tensors by name, and plain values."""
        tensors = {f"model/{k}": v for k, v in self.own.items()}
        tensors |= {f"average/{k}": v for k, v in (self.average or {}).items()}
        tensors |= {f"objective/{k}": v for k, v in state_tree(self.objective).items()}
        values: dict[str, Any] = {"bad_steps": self.bad_steps, "scaler": self._scaler.state_dict()}
        for name, parameter in self._trained.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{key}/{name}"] = value
        return tensors, values

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take up what `save` returned."""
        copy_tree_(self.own, strip_prefix(tensors, "model/"))
        if self.average is not None:
            copy_tree_(self.average, strip_prefix(tensors, "average/"))
        copy_tree_(state_tree(self.objective), strip_prefix(tensors, "objective/"))
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


def _freeze_others_(model: nn.Module, own: Collection[str]) -> list[nn.Module]:
    """Switch off the gradients of all parameters but those of `own`; the modules that would change what is frozen."""
    for name, parameter in model.named_parameters():
        if name not in own:
            parameter.requires_grad_(False)
    state = model.state_dict(keep_vars=True).keys()
    resting = []
    for path, module in model.named_modules():
        parameters = {name for name, _ in module.named_parameters(path, recurse=False)}
        statistics = {name for name, _ in module.named_buffers(path, recurse=False)} & state
        held = parameters | statistics
        if held and (held.isdisjoint(own) or not statistics <= set(own)):
            resting.append(module)
    return resting


def ema_(average: StateTree, tree: StateTree, decay: float) -> None:
    """average ← decay·average + (1−decay)·tree, in place; what is not a float is copied."""
    floats = [name for name, tensor in average.items() if tensor.is_floating_point()]
    torch._foreach_lerp_([average[n] for n in floats], [tree[n] for n in floats], 1 - decay)
    for name, tensor in average.items():
        if not tensor.is_floating_point():
            tensor.copy_(tree[name])


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> StateTree:
    """The tensors whose names start with the prefix, named without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _copy_all_(into: list[Tensor], source: list[Tensor]) -> None:
    if into:
        torch._foreach_copy_(into, source)


class _Task(nn.Module):
    """A loss as the forward pass of a module, which is what DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, objective: nn.Module) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, loss: Loss) -> Tensor:
        self.terms = loss()
        return self.terms.total


def _merge(sum_: LossTerms | None, terms: LossTerms, share: float) -> LossTerms:
    total = terms.total.detach() * share
    parts = {name: value.detach() * share for name, value in terms.parts.items()}
    if sum_ is None:
        return LossTerms(total, parts)
    return LossTerms(sum_.total + total, {name: sum_.parts[name] + value for name, value in parts.items()})
