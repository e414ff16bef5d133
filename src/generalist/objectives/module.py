"""What an objective is: a module with hooks, all of which do nothing unless a method needs them."""

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor, nn

from generalist.core.types import Loss, Objective, StepContext


class ObjectiveModule(nn.Module):
    """An objective, with whatever it keeps from step to step: networks, running errors.

    Its parameters are trained by the learner's optimizer beside the model's own, and its `state_dict` is saved with the
    learner. A network that is only evaluated is kept out of both by `FrozenNetwork`.

    Attributes:
        needs: names of the trained networks that the constructor takes as `networks`.
        outlives_reset: whether its state is kept when the learner is reset, so that steps before a reset matter after
            it. A learner with such an objective is never idle.
        own_start: whether `attach_` gives the model its first weights.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    outlives_reset: ClassVar[bool] = True
    own_start: ClassVar[bool] = False

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        """Attack the batch now; return its loss as a function of the weights at the time it is called.

        Args:
            model: the learner's model, in training mode; not changed here.
            x: images [B, C, H, W], float32 in [0, 1].
            y: labels [B], int64.
            context: randomness, progress and the ranks that share the batch.
        """
        raise NotImplementedError

    def attach_(self, model: nn.Module) -> None:
        """Called once, before the optimizer is made: build the networks that are trained beside the model.

        Parameters that the learner does not train have `requires_grad` off by now.
        """

    def step_ended_(self, *, usable: bool, context: StepContext) -> None:
        """Called after every step, with the context of the step; one that is not usable was not applied."""

    def model_replaced_(self, model: nn.Module) -> None:
        """Called after the learner was reset to the global model."""

    def epoch_ended_(self, model: nn.Module) -> None:
        """Called after the last step of every epoch; may change the model."""

    def variants(self, model: nn.Module) -> Iterator[nn.Module]:
        """The models to select from at the end of training; BatchNorm statistics of new ones are measured first."""
        yield model


class FunctionObjective(ObjectiveModule):
    """A function as an objective: no state, and no hook does anything."""

    outlives_reset = False
    _function: Objective

    def __init__(self, function: Objective) -> None:
        super().__init__()
        vars(self)["_function"] = function  # never a submodule, whose parameters would be trained and saved

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, context: StepContext) -> Loss:
        return self._function(model, x, y, context=context)


def as_module(objective: Objective) -> ObjectiveModule:
    """The objective itself where it has hooks, else one around it."""
    return objective if isinstance(objective, ObjectiveModule) else FunctionObjective(objective)


class FrozenNetwork:
    """A frozen network that no optimizer, checkpoint or state_dict of its owner should see."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval().requires_grad_(False)
