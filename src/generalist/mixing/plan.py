"""What happens when: the weights γ, the decay, the redistributions, and which learners must be trained at all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal

from generalist.core.errors import UserError
from generalist.core.schedules import check_points, interpolate

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Points:
    """γ linear between breakpoints (shares of training)."""

    at: tuple[Fraction, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        check_points(self.at, self.values)


@dataclass(frozen=True)
class Share:
    """γ as a share of what the learners with breakpoints leave."""

    of_rest: float


REST: Literal["rest"] = "rest"
Gamma = Points | Share | Literal["rest"]
WHOLE = "everything"
"""The name of the only part of a network that is mixed with the same weights throughout."""


def scaled(gamma: Points | Share, factor: float) -> Points | Share:
    """γ times a factor, at every moment of training."""
    if isinstance(gamma, Share):
        return Share(gamma.of_rest * factor)
    return Points(gamma.at, tuple(value * factor for value in gamma.values))


@dataclass(frozen=True)
class MixPlan:
    """When learners are mixed with which weights, when they are reset to θ_g, and which of them are idle.

    Steps count from 0; epoch t is over after its last step. One learner alone is never reset: it is the plain method,
    and θ_g is its running average.

    Args:
        gammas: γ per learner: breakpoints (`Points`), a share of what those leave (`Share`), or `REST`. They sum to 1.
            The weights of `parts`, where they are given, count instead.
        epochs: Epochs of training.
        steps_per_epoch: Batches per epoch.
        decay_limit: α' of the running average.
        decay_warmup: Whether the decay begins as (1 + s)/(10 + s).
        start_epoch: t', the first epoch after which learners may be reset.
        every_epochs: c, the epochs between resets.
        redistribution: Reset at the end of such an epoch, after every step of it, or never.
        full_reset: Learners of whom a reset replaces everything they carry; only they can be idle.
        train_idle: Train learners that cannot influence θ_g all the same.
        parts: γ per part of the network, for the learners that train the part. They sum to 1 in each.
        windows: The epochs in which a learner is trained, (first, end), counted from 0; all of them if not given. A
            learner that starts later starts from θ_g, and so does one that ends there: it stays what θ_g was.

    Example:
        >>> from generalist import MixPlan
        >>> from generalist.mixing import REST, Points
        >>> plan = MixPlan({"linf": Points((0, 1), (1.0, 0.0)), "natural": REST}, epochs=4, steps_per_epoch=10)
        >>> plan.weights(20)
        {'linf': 0.5, 'natural': 0.5}
    """

    gammas: Mapping[str, Gamma]
    epochs: int
    steps_per_epoch: int
    decay_limit: float = 0.999
    decay_warmup: bool = True
    start_epoch: int = 0
    every_epochs: int = 5
    redistribution: Literal["boundary", "every_step", "never"] = "boundary"
    full_reset: Mapping[str, bool] | None = None
    train_idle: bool = False
    parts: Mapping[str, Mapping[str, Gamma]] | None = None
    windows: Mapping[str, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        self._check_windows()
        for part, gammas in self.parted.items():
            self._check_sums(part, gammas)
        for name in self.gammas:
            self._check_idle_before_start(name)

    def _check_windows(self) -> None:
        """There is no epoch in which nobody is trained: whoever asks for one has made a mistake."""
        for epoch in range(self.epochs) if self.windows else ():
            if not any(self._in_window(name, epoch) for name in self.gammas):
                given = ", ".join("{} {}–{}".format(name, *self._window(name)) for name in self.gammas)
                when = "from the start" if epoch == 0 else f"after epoch {epoch}"
                raise UserError(f"no learner is trained {when}; let one start earlier or end later (epochs: {given})")

    def _check_sums(self, part: str, gammas: Mapping[str, Gamma]) -> None:
        where = "" if part == WHOLE else f" in {part}"
        takers = [name for name, gamma in gammas.items() if gamma == REST]
        if len(takers) > 1:
            raise UserError(f"only one learner can take the rest of gamma, got {' and '.join(takers)}{where}")
        for progress in sorted({Fraction(0), Fraction(1), *self._breaks}):
            weights = self._weights_of(gammas, progress)
            total = sum(weights.values())
            if abs(total - 1) > TOLERANCE or min(weights.values(), default=0) < -TOLERANCE:
                listed = (
                    ", ".join(f"{name}={value:g}" for name, value in weights.items()) or "no learner that trains it"
                )
                raise UserError(
                    f"gamma must be ≥ 0 and sum to 1, got {listed} (sum {total:g}){where}"
                    f" at {float(progress):.3g} of training; give one learner `gamma: rest`"
                )

    def _check_idle_before_start(self, name: str) -> None:
        """A learner that has not started yet has nothing to give."""
        start = self._window(name)[0] * self.steps_per_epoch
        for step in sorted(step for step in {start - 1, *self._steps_at_breaks} if 0 <= step < start):
            if self.weights(step)[name] > TOLERANCE:
                raise UserError(
                    f"learner {name!r} starts after epoch {self._window(name)[0]}; its gamma must be 0 until then, got"
                    f" {self.weights(step)[name]:g} at {float(self.progress(step)):.3g} of training"
                )

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def parted(self) -> Mapping[str, Mapping[str, Gamma]]:
        """γ per part of the network, and learner that trains the part."""
        return {WHOLE: self.gammas} if self.parts is None else self.parts

    def _window(self, name: str) -> tuple[int, int]:
        return (self.windows or {}).get(name, (0, self.epochs))

    @cached_property
    def _breaks(self) -> set[Fraction]:
        every = [gamma for gammas in self.parted.values() for gamma in gammas.values()]
        return {at for gamma in every if isinstance(gamma, Points) for at in gamma.at}

    def progress(self, step: int) -> Fraction:
        return Fraction(step, self.steps)

    @staticmethod
    def _weights_of(gammas: Mapping[str, Gamma], progress: Fraction) -> dict[str, float]:
        """γ of every learner: breakpoints first, then shares of what they leave, then the rest."""
        weights = {
            name: interpolate(progress, gamma.at, gamma.values)
            for name, gamma in gammas.items()
            if isinstance(gamma, Points)
        }
        left = 1.0 - sum(weights.values())
        left = 0.0 if abs(left) < TOLERANCE else left
        weights |= {name: gamma.of_rest * left for name, gamma in gammas.items() if isinstance(gamma, Share)}
        for name, gamma in gammas.items():
            if gamma == REST:
                rest = 1.0 - sum(weights.values())
                weights[name] = 0.0 if abs(rest) < TOLERANCE else rest
        return {name: weights[name] for name in gammas}

    def weights_by_part(self, step: int) -> dict[str, dict[str, float]]:
        """γ in each part of the network, of every learner that trains the part."""
        progress = self.progress(step)
        return {part: self._weights_of(gammas, progress) for part, gammas in self.parted.items()}

    def weights_at(self, progress: Fraction) -> dict[str, float]:
        """γ of every learner; where it depends on the part of the network, the largest."""
        parts = [self._weights_of(gammas, progress) for gammas in self.parted.values()]
        return {name: max((weights.get(name, 0.0) for weights in parts), default=0.0) for name in self.gammas}

    def weights(self, step: int) -> dict[str, float]:
        """`weights_at` this step."""
        return self.weights_at(self.progress(step))

    def decay(self, step: int) -> float:
        """α', warmed up as min(α', (1+s)/(10+s))."""
        return min(self.decay_limit, (1 + step) / (10 + step)) if self.decay_warmup else self.decay_limit

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self.steps_per_epoch == 0

    def redistributes_after(self, step: int) -> bool:
        """Whether learners are reset to θ_g once this step is done."""
        return bool(self.receivers(step))

    def receivers(self, step: int) -> tuple[str, ...]:
        """The learners that are reset to θ_g once this step is done.

        At a redistribution these are all that are trained on. Where a learner starts, they are those that start and
        those that end.
        """
        epoch = (step + 1) // self.steps_per_epoch
        found: set[str] = set()
        if self.next_redistribution(step) == step:
            found |= {name for name in self.gammas if self._in_window(name, min(epoch, self.epochs - 1))}
        if self.ends_epoch(step) and any(self._window(name)[0] == epoch for name in self.gammas):
            found |= {name for name in self.gammas if epoch in self._window(name)}
        return tuple(name for name in self.gammas if name in found)

    def starts_or_ends(self, name: str, step: int) -> bool:
        """Whether the learner's window begins or ends once this step is done: it carries nothing over from before."""
        return self.ends_epoch(step) and (step + 1) // self.steps_per_epoch in self._window(name)

    def redistributes_in(self, epoch: int) -> bool:
        """Whether learners are reset to θ_g in this epoch, counted from 1, or at its end."""
        first, end = (epoch - 1) * self.steps_per_epoch, epoch * self.steps_per_epoch
        found = self.next_redistribution(first)
        return (found is not None and found < end) or bool(self.receivers(end - 1))

    def _in_window(self, name: str, epoch: int) -> bool:
        first, end = self._window(name)
        return first <= epoch < end

    def next_redistribution(self, step: int) -> int | None:
        """The first step from this one on that ends in a redistribution; the starts of learners do not count.

        Never the last step of training: nothing is trained after it, and the learners, which a reset would make
        alike, are results of the run too.
        """
        if self.redistribution == "never" or len(self.gammas) == 1:
            return None
        epoch = step // self.steps_per_epoch
        if self.redistribution == "boundary":  # after epoch t = 1, 2, …
            found = self._counting_epoch(epoch + 1) * self.steps_per_epoch - 1
        else:  # after every step of epoch e = 0, 1, …
            found = max(step, self._counting_epoch(epoch) * self.steps_per_epoch)
        return found if found < self.steps - 1 else None

    def _counting_epoch(self, epoch: int) -> int:
        """The first epoch from this one on that is ≥ t' and a multiple of c."""
        return -(-max(1, self.start_epoch, epoch) // self.every_epochs) * self.every_epochs

    def is_active(self, name: str, step: int) -> bool:
        """Whether this step of the learner can influence θ_g.

        It cannot outside the learner's window, nor where γ is zero from now until a reset that replaces all that the
        learner carries.
        """
        if not self._in_window(name, step // self.steps_per_epoch):
            return False
        if self.train_idle or not (self.full_reset or {}).get(name, False):
            return True
        reset = self.next_redistribution(step)
        if reset is None or name not in self.receivers(reset):
            return True
        return not self._zero_between(name, step, reset)

    def _zero_between(self, name: str, first: int, last: int) -> bool:
        """γ is linear between breakpoints, so looking at the ends and on both sides of each breakpoint is enough."""
        look = {first, last}
        for at in self._breaks:
            below = int(at * self.steps)
            look |= {step for step in (below, below + 1) if first < step < last}
        return all(self._known_weights(step)[name] == 0 for step in look)

    @cached_property
    def _known_weights(self) -> Callable[[int], dict[str, float]]:
        return lru_cache(maxsize=4096)(self.weights)

    def is_active_in_epoch(self, name: str, epoch: int) -> bool:
        """Whether any step of the epoch (counted from 0) can influence θ_g."""
        first = epoch * self.steps_per_epoch
        look = {first, first + self.steps_per_epoch - 1, *self._steps_at_breaks}
        return any(self.is_active(name, step) for step in look if first <= step < first + self.steps_per_epoch)

    @cached_property
    def _steps_at_breaks(self) -> set[int]:
        """The steps on both sides of each breakpoint: between them γ is linear."""
        below = {int(at * self.steps) for at in self._breaks}
        return below | {step + 1 for step in below} | {step - 1 for step in below}

    def active_epochs(self, name: str, *, since: int = 0) -> float:
        """How many epochs' worth of steps the learner is trained, from epoch `since` on (counted from 0)."""
        live = 0
        for first in range(since * self.steps_per_epoch, self.steps, self.steps_per_epoch):
            last = first + self.steps_per_epoch - 1
            ends = self.is_active(name, first), self.is_active(name, last)
            step_by_step = self.redistribution == "every_step" and self.redistributes_after(first)
            alike = ends[0] == ends[1] and not step_by_step
            live += (
                self.steps_per_epoch * ends[0]
                if alike
                else sum(self.is_active(name, s) for s in range(first, last + 1))
            )
        return live / self.steps_per_epoch
