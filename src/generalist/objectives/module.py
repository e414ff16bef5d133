"""Objectives that are more than a loss."""

from collections.abc import Iterator
from typing import ClassVar

from torch import nn


class ObjectiveModule(nn.Module):
    """Carries something from step to step: networks, running errors.

    Its parameters are trained by the learner's optimizer beside the model's own, and all its state is saved with the
    learner. Called as any objective is. A network that is only consulted is kept out of both (`FrozenNetwork`).
    """

    needs: ClassVar[tuple[str, ...]] = ()
    outlives_reset: ClassVar[bool] = True
    own_start: ClassVar[bool] = False  # `attach_` gives the model its first weights

    def attach_(self, model: nn.Module) -> None:
        """Once, before the optimizer is made: build what goes beside the model."""

    def step_ended_(self, *, usable: bool) -> None:
        """After every step; one that is not usable was not applied."""

    def model_replaced_(self, model: nn.Module) -> None:
        """The learner was reset to the global model."""

    def epoch_ended_(self, model: nn.Module) -> None:
        """After the last step of every epoch; the model may be changed."""

    def variants(self, model: nn.Module) -> Iterator[nn.Module]:
        """The models to choose from at the end of training; their BatchNorm statistics are measured before that."""
        yield model


class FrozenNetwork:
    """A frozen network that no optimizer, checkpoint or state_dict of its owner should see."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval().requires_grad_(False)
