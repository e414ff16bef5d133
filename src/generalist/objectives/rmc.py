"""RMC: robust mode connectivity (Wang et al. 2023). A curve of networks between two robust endpoints, its bend trained.

The quadratic Bézier curve with bend b is θ(t) = (1−t)²·w₁ + 2t(1−t)·b + t²·w₂. The learner's model is kept at its
middle m = θ(½) = ¼w₁ + ½b + ¼w₂, which is a network that can be validated and mixed where b is not. In terms of m,
θ(t) = (1−t)(1−2t)·w₁ + 4t(1−t)·m + t(2t−1)·w₂; the gradient for m is scaled so that b takes the steps that the loss
gives it in Bézier's form. Weight decay draws m, not b, towards 0.
"""

import copy
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from generalist.attacks import pgd
from generalist.core.errors import UserError
from generalist.core.types import InnerSteps, Loss, LossTerms, StepContext
from generalist.distributed.shared_batchnorm import statistics_over
from generalist.objectives.fields import Threats
from generalist.objectives.module import FrozenNetwork, ObjectiveModule
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("rmc")
class Curve(ObjectiveModule):
    """CE(x') under θ(t), t~U(0, 1) for each batch; x' against θ(t), one threat per batch, all equally often.

    Args:
        points: How many points of the finished curve the reported model is chosen from.
    """

    needs = ("first", "second")
    outlives_reset = False
    own_start = True

    def __init__(
        self, *, networks: Mapping[str, nn.Module], threats: Threats, steps: InnerSteps = 10, points: InnerSteps = 61
    ) -> None:
        super().__init__()
        self._ends = [FrozenNetwork(networks[name]) for name in self.needs]
        self._threats, self._steps, self._points = threats, steps, points

    def attach_(self, model: nn.Module) -> None:
        """The bend starts halfway between the endpoints."""
        self._probe = FrozenNetwork(copy.deepcopy(model))
        self._norms = [m for m in self._probe.network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in self._norms:
            norm.momentum = 1.0  # its statistics are those of the last batch
        states = [end.network.state_dict() for end in self._ends]
        for name, state in zip(self.needs, states, strict=True):
            differing = [key for key, tensor in model.state_dict().items() if _shape(state.get(key)) != tensor.shape]
            if differing:
                raise UserError(f"rmc: the network {name!r} is not of the run's own kind: {differing[0]} differs")
        with torch.no_grad():
            for name, tensor in model.state_dict(keep_vars=True).items():
                first, second = (state[name].to(tensor.device) for state in states)
                tensor.copy_((first + second) / 2 if tensor.is_floating_point() else first)

    def at(self, model: nn.Module, t: float) -> dict[str, Tensor]:
        """The parameters of θ(t) by name, with a gradient for the model's own."""
        first, second = (dict(end.network.named_parameters()) for end in self._ends)
        a, m, b = (1 - t) * (1 - 2 * t), 4 * t * (1 - t), t * (2 * t - 1)
        return {
            # ∂θ/∂b = 2t(1−t) and m = b/2 + …, so a step of b moves m by t(1−t) = m/4 times the gradient
            name: a * first[name].to(w) + b * second[name].to(w) + m / 4 * w + 3 * m / 4 * w.detach()
            for name, w in model.named_parameters()
        }

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        t, which = context.shared.uniform(2)[0].tolist()
        threat = self._threats[int(which * len(self._threats))]
        probe = self._place_(model, t)
        self._measure_(x, context)
        x_adv = pgd(probe, x, y, threat=threat, steps=self._steps, generator=context.generator)

        def loss() -> LossTerms:
            if model.training and self._norms:
                with torch.no_grad():  # the model's own statistics belong to the middle of the curve
                    model(x_adv)
            buffers = {name: buffer.clone() for name, buffer in probe.named_buffers()}
            logits = functional_call(model, {**self.at(model, t), **buffers}, (x_adv,))
            return LossTerms(F.cross_entropy(logits, y))

        return loss

    @torch.no_grad()
    def _measure_(self, x: Tensor, context: StepContext) -> None:
        """BatchNorm statistics of θ(t) on this batch, which are those that the loss will see."""
        if self._norms:
            for norm in self._norms:
                norm.train()
            with statistics_over(context.team, self._probe.network):
                self._probe.network(x)
            self._probe.network.eval()

    def variants(self, model: nn.Module) -> Iterator[nn.Module]:
        for index in range(self._points):
            yield copy.deepcopy(self._place_(model, index / max(self._points - 1, 1)))

    @torch.no_grad()
    def _place_(self, model: nn.Module, t: float) -> nn.Module:
        """θ(t) as a network of its own, with the model's buffers."""
        self._probe.network.load_state_dict({**model.state_dict(), **self.at(model, t)})
        return self._probe.network


def _shape(tensor: Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape
