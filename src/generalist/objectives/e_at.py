"""E-AT (Croce and Hein 2022): one extreme norm per batch, drawn in proportion to its errors."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import apgd
from generalist.core.types import InnerSteps, Loss, LossTerms, StepContext, Unit
from generalist.objectives.fields import Threats
from generalist.objectives.module import ObjectiveModule
from generalist.objectives.registry import OBJECTIVES


@OBJECTIVES.register("e-at")
class ExtremeNorms(ObjectiveModule):
    """CE(x'), x' the point of highest CE of APGD; the threat is drawn in proportion to its running robust error.

    Args:
        memory: The decay of the running errors.
    """

    errors: Tensor

    def __init__(self, *, threats: Threats, steps: InnerSteps = 10, memory: Unit = 0.9) -> None:
        super().__init__()
        self._threats, self._steps, self._memory = threats, steps, memory
        self.register_buffer("errors", torch.ones(len(threats)))
        self._chosen, self._wrong = 0, list[Tensor]()  # of the current step, one tensor per part of the batch

    def attach_(self, model: nn.Module) -> None:
        self.to(next(model.parameters()).device)

    def draw(self, context: StepContext) -> Tensor:
        """Index of the threat for this batch: a scalar on the device."""
        reached = self.errors.cumsum(0) / self.errors.sum().clamp_min(1e-12)
        return (context.shared.uniform(1)[0, 0].to(reached) >= reached[:-1]).sum()

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        chosen = int(self.draw(context))
        x_adv = apgd(
            model, x, y, threat=self._threats[chosen], steps=self._steps, loss="ce", stop_when_wrong=False,
            random_start=False, wider_first=False, generator=context.generator,
        )  # fmt: skip
        seen = False

        def loss() -> LossTerms:
            nonlocal seen
            logits = model(x_adv)
            if torch.is_grad_enabled() and not seen:
                seen, self._chosen = True, chosen
                self._wrong.append(logits.detach().argmax(1) != y)
            return LossTerms(F.cross_entropy(logits, y), {f"error_{t}": e for t, e in self._by_threat().items()})

        return loss

    def step_ended_(self, *, usable: bool, context: StepContext) -> None:
        if usable and self._wrong:
            (error,) = context.batch_mean([torch.cat(self._wrong).float().mean()])
            self.errors[self._chosen] = self._memory * self.errors[self._chosen] + (1 - self._memory) * error
        self._wrong.clear()

    def _by_threat(self) -> dict[str, Tensor]:
        return {str(threat): error.clone() for threat, error in zip(self._threats, self.errors, strict=True)}
