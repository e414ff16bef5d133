"""One ascent of APGD over a batch: step size, momentum and best point are per image."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from generalist.attacks.progress import track
from generalist.attacks.survivors import Survivors
from generalist.attacks.view import loss_and_gradient
from generalist.core.threat import Threat, expand_like, unblocked
from generalist.core.types import Criterion

Towards = Callable[[Tensor], Criterion]
"""Target classes [B] → the criterion to raise."""

INERTIA = 0.25  # share of the last move that the next one repeats (1 − α in the paper)
RISING = 0.75  # share of the steps that have to raise the loss, else the step size is halved (ρ in the paper)
SPARSER = 1.5  # an ℓ1 step moves this many times fewer pixels than the best point has moved
FIRST_SHARE = 0.2  # share of the pixels that the first ℓ1 step from the image itself moves


@dataclass
class Ascent:
    """The state of the images that are left: one row per image in every field."""

    x: Tensor
    y: Tensor
    target: Tensor
    x_adv: Tensor
    step: Tensor  # in pixel units
    before: Tensor = field(init=False)  # the point before x_adv
    loss: Tensor = field(init=False)
    gradient: Tensor = field(init=False)
    best: Tensor = field(init=False)
    best_loss: Tensor = field(init=False)
    best_gradient: Tensor = field(init=False)
    raised: Tensor = field(init=False)  # number of steps since the last checkpoint that raised the loss
    reached: Tensor = field(init=False)  # best loss at the last checkpoint
    halved: Tensor = field(init=False)  # whether the step was halved at the last checkpoint
    moved: Tensor = field(init=False)  # number of pixels the best point had moved at the last checkpoint

    def __post_init__(self) -> None:
        self.before = self.best = self.x_adv
        self.gradient = self.best_gradient = torch.zeros_like(self.x)
        self.loss = self.best_loss = self.reached = torch.full_like(self.step, -torch.inf)
        self.raised = torch.full_like(self.step, -1)  # the first evaluation raises the loss, but is not a step
        self.halved = torch.ones_like(self.y, dtype=torch.bool)
        moved = _moved(self.x_adv, self.x)
        self.moved = torch.where(moved > 0, moved, FIRST_SHARE * SPARSER * self.x[0].numel())

    def climb_(
        self, view: nn.Module, *, threat: Threat, steps: int, towards: Towards, survivors: Survivors | None
    ) -> None:
        """Take the steps, in place. With `survivors`, an image leaves once it is misclassified (early exit)."""
        checkpoints, longest = checkpoints_of(threat, steps), self.step[:1]
        for step in track(range(steps + 1)):
            if step > 0:
                ahead = self._next(threat, inertia=INERTIA if step > 1 else 0.0)
                self.x_adv, self.before = ahead, self.x_adv
            logits = self._evaluate_(view, towards(self.target))
            if survivors is not None:
                self.keep_(survivors.drop(self.x_adv, wrong(logits, self.y)))
                if not len(self.y):
                    return
            if step in checkpoints and threat.norm == "l1":
                self._adapt_sparsity_(longest)
            elif step in checkpoints:
                self._adapt_step_(window=checkpoints[step])

    def keep_(self, rows: Tensor | None) -> None:
        if rows is not None:
            for name in fields(self):
                setattr(self, name.name, getattr(self, name.name)[rows])

    def _evaluate_(self, view: nn.Module, criterion: Criterion) -> Tensor:
        """The logits of x_adv. Loss and gradient are stored, and the best point is updated."""
        logits, loss, gradient = loss_and_gradient(view, self.x_adv, self.y, criterion)
        self.raised = self.raised + (loss > self.loss)
        self.loss, self.gradient = loss, gradient
        better = loss > self.best_loss
        self.best = torch.where(expand_like(better, self.x), self.x_adv, self.best)
        self.best_gradient = torch.where(expand_like(better, self.x), self.gradient, self.best_gradient)
        self.best_loss = torch.where(better, loss, self.best_loss)
        return logits

    def _next(self, threat: Threat, *, inertia: float) -> Tensor:
        step = expand_like(self.step, self.x)
        if threat.norm == "l1":
            direction = sparse_sign(unblocked(self.gradient, self.x_adv), (self.moved / SPARSER).long())
            return threat.project(self.x_adv + step * direction, self.x)
        ahead = threat.project(self.x_adv + step * threat.steepest(self.gradient), self.x)
        if not inertia:
            return ahead
        mixed = self.x_adv + (1 - inertia) * (ahead - self.x_adv) + inertia * (self.x_adv - self.before)
        return threat.project(mixed, self.x)

    def _adapt_step_(self, *, window: int) -> None:
        """Halve the step and return to the best point where too few steps raised the loss.

        The same where, since the last checkpoint, neither the step size nor the best loss has changed.
        """
        idle = ~self.halved & (self.best_loss <= self.reached)
        self.halved = (self.raised < RISING * window) | idle
        self.step = torch.where(self.halved, self.step / 2, self.step)
        self.reached, self.raised = self.best_loss, torch.zeros_like(self.raised)
        self._go_back_(self.halved)

    def _adapt_sparsity_(self, longest: Tensor) -> None:
        """Where the best point has become sparser, return to it with the longest step; elsewhere shorten the step."""
        moved = _moved(self.best, self.x)
        sparser = moved < 0.95 * self.moved
        self.step = torch.where(sparser, longest, torch.maximum(self.step / SPARSER, longest / 10))
        self.moved = moved
        self._go_back_(sparser)

    def _go_back_(self, rows: Tensor) -> None:
        self.x_adv = torch.where(expand_like(rows, self.x), self.best, self.x_adv)
        self.gradient = torch.where(expand_like(rows, self.x), self.best_gradient, self.gradient)
        self.loss = torch.where(rows, self.best_loss, self.loss)


def checkpoints_of(threat: Threat, steps: int) -> dict[int, int]:
    """Checkpoint → steps since the previous one. Of 100 steps: 22, 41, 57, 70, 80, 87, 93, 99; in ℓ1 every 4 %."""
    window, shrink, least = (max(percent * steps // 100, 1) for percent in (22, 3, 6))
    if threat.norm == "l1":
        window = least = max(4 * steps // 100, 1)
    found, at = {}, window
    while at <= steps:
        found[at] = window
        window = max(window - shrink, least)
        at += window
    return found


def sparse_sign(gradient: Tensor, count: Tensor) -> Tensor:
    """The signs of the `count` [B] coordinates with the largest gradients, at least one, scaled to unit ℓ1 norm."""
    size = gradient.abs().flatten(1)
    last = count.clamp(1, size.shape[1])[:, None] - 1
    least = size.sort(1, descending=True).values.gather(1, last)
    chosen = torch.where(size >= least, gradient.flatten(1).sign(), 0)
    return (chosen / chosen.abs().sum(1, keepdim=True).clamp_min(1)).view_as(gradient)


def wrong(logits: Tensor, y: Tensor) -> Tensor:
    """Which logits are misclassified, [B]. NaN counts as wrong, as in `misclassified`."""
    return (logits.argmax(1) != y) | logits.isnan().any(1)


def _moved(x_adv: Tensor, x: Tensor) -> Tensor:
    return (x_adv != x).flatten(1).sum(1).float()
