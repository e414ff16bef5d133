"""Models made to look robust, and the honest one beside them."""

import copy

import torch
from torch import Tensor, nn

import generalist


class Quantised(nn.Module):
    """Rounds its input: right answers, no gradient."""

    def __init__(self, inner: nn.Module, levels: int = 4) -> None:
        super().__init__()
        self.inner, self.levels = inner, levels

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x * self.levels).round() / self.levels)


class Scaled(nn.Module):
    """Logits so large that the cross-entropy saturates."""

    def __init__(self, inner: nn.Module, scale: float = 1e4) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


class Softmax(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).softmax(1)


class Noisy(nn.Module):
    """Draws from the global generator at every pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.05 * torch.randn_like(x))


class Trap(nn.Module):
    """A bump close to every image that small steps cannot leave, and a cliff behind it that one long step reaches.

    Class 1 wins where the mean pixel is far from ½.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        away = (x.mean((1, 2, 3)) - 0.5).abs() / self.eps
        bump = torch.where(away < 0.3, away, 0.6 - away)
        z = torch.where(away > 0.65, 10 * away, bump - 5) * self.scale
        return torch.stack([-z, z], 1)


TRAINED: dict[str, nn.Module] = {}
"""By this process, by recipe."""


def digits_model(folder, *, natural: bool = False) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network on digits, adversarially trained or not, with 120 test images; trained once, in that folder."""
    name = "digits-nt" if natural else "digits-at"
    sets = ["training.epochs=6", "model.width=8", "data.limit=1000", "validation.every_epochs=6", "select=last"]
    sets += [] if natural else ["learners.linf.objective.threat=linf:1/10", "learners.linf.objective.steps=4"]
    if name not in TRAINED:
        TRAINED[name] = generalist.train(generalist.load_recipe(name, sets), out=folder / name).model()
    split = generalist.load_dataset("digits").test
    return copy.deepcopy(TRAINED[name]), split.images[:120].float() / 255, split.labels[:120]
