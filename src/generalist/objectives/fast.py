"""Fast adversarial training (Wong et al. 2020): one long step from a random start, watched for its known failure."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.attacks import misclassified, pgd
from generalist.core.errors import RunError
from generalist.core.threat import Threat
from generalist.core.types import Count, Loss, LossTerms, PositiveFloat, StepContext, Unit
from generalist.objectives.module import ObjectiveModule
from generalist.objectives.registry import OBJECTIVES

WATCH_STEPS = 10
GAP = 0.2  # what one step leaves more than many do; the luck of a batch is less


@OBJECTIVES.register("fast")
class Fast(ObjectiveModule):
    """CE(x'), x' by FGSM of 1.25ε from a uniform start.

    Every `watch_every` steps the batch is attacked by PGD-10 too. Where less than `collapse` of the best PGD accuracy
    so far is left while x' itself does little harm, the model has learned the one step instead of robustness
    (catastrophic overfitting): the run stops.

    Args:
        step: The length of the one step, in ε.
        watch_every: Steps between looks at the PGD accuracy.
        collapse: The share of the best PGD accuracy below which the run stops.
    """

    best: Tensor
    steps_done: Tensor

    def __init__(
        self, *, threat: Threat, step: PositiveFloat = 1.25, watch_every: Count = 50, collapse: Unit = 0.5
    ) -> None:
        super().__init__()
        self._threat, self._step = threat, step
        self._watch_every, self._collapse = watch_every, collapse
        self._right = list[Tensor]()  # of the watched batch: correct under one step, correct under many
        self.register_buffer("best", torch.zeros(()))
        self.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))

    def attach_(self, model: nn.Module) -> None:
        self.to(next(model.parameters()).device)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        size = self._step * self._threat.radius
        x_adv = pgd(model, x, y, threat=self._threat, steps=1, step_size=size, generator=context.generator)
        if torch.is_grad_enabled() and (int(self.steps_done) + 1) % self._watch_every == 0:
            attacked = pgd(model, x, y, threat=self._threat, steps=WATCH_STEPS, generator=context.generator)
            self._right.append(torch.stack([~misclassified(model, part, y) for part in (x_adv, attacked)]))
        return lambda: LossTerms(F.cross_entropy(model(x_adv), y), {"pgd": self.best.clone()})

    def step_ended_(self, *, usable: bool, context: StepContext) -> None:
        self.steps_done += 1
        if not self._right:
            return
        one_step, many = context.batch_mean([torch.cat(self._right, 1).float().mean(1)])[0].tolist()
        self._right.clear()
        if many < self._collapse * float(self.best) and one_step - many > GAP:
            raise RunError(
                f"catastrophic overfitting at step {int(self.steps_done)}: on a training batch PGD-{WATCH_STEPS}"
                f" accuracy fell to {many:.0%} from {float(self.best):.0%}, one step leaves {one_step:.0%}; the models"
                " selected so far are kept. Try a smaller eps, a shorter step, or PGD with two or more steps"
            )
        self.best.clamp_(min=many)
