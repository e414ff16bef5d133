"""How an evaluation stands: what each stage left, which one is at work, and about how long all of it will take."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from generalist.attacks.progress import watched
from generalist.attacks.view import Passes
from generalist.core.threat import Threat
from generalist.distributed import ranks
from generalist.evaluation.accuracy import percent
from generalist.evaluation.suite import Stage, Suite

NATURAL = "natural"


@dataclass(frozen=True)
class Ended:
    """% right under a stage and, in a cascade, under all before it: then `left` is how many the next one gets."""

    robust: float
    left: int | None
    seconds: float


@dataclass(frozen=True)
class Standing:
    """A moment of an evaluation. Images at work are `done` by the share of their attack that is behind them.

    Stages are counted over all threats, from 1; 0 is the model without any attack. `seconds_left` is for all of them,
    None until something was measured.
    """

    threat: str
    stage: str
    number: int
    stages: int
    done: float
    total: int
    seconds_left: float | None = None
    ended: Ended | None = None


Progress = Callable[[Standing], None]

PASSES_A_STEP = {"square": 1, "fab-t": 3}
"""Passes of one step, forward and backward; a gradient is two."""


def passes_per_image(stage: Stage, classes: int) -> float:
    """The passes of an image that survives the stage; one that does not takes fewer."""
    options = {key: value for key, value in stage.options.items() if isinstance(value, int)}
    steps = options.get("steps") or options.get("queries") or 1
    runs = options.get("restarts", 1) * min(options.get("targets", 1), max(1, classes - 1))
    return 1.0 + steps * runs * PASSES_A_STEP.get(stage.attack, 2)


@dataclass
class Board:
    """Follows an evaluation for whoever watches, and knows what is still to come.

    The time left is the passes left times the seconds of a pass so far. Images of the stage at work are expected to
    take the passes that others took in it; those of later stages all passes of the attack, and all images that are left
    now to reach them. Under threats to come, half of the images are expected to reach the later stages of a cascade.
    """

    suite: Suite
    threats: Sequence[Threat]
    natural: Tensor
    classes: int
    progress: Progress | None
    clock: Callable[[], float] = time.perf_counter
    seconds: float = 0.0
    passes: float = 0.0

    def __post_init__(self) -> None:
        right, total = int(self.natural.sum()), len(self.natural)
        self._right = right / ranks.world()
        ended = Ended(percent(self.natural), right, 0.0)
        self.tell(Standing("", NATURAL, 0, len(self.threats) * len(self.suite.stages), total, total, None, ended))

    def tell(self, standing: Standing) -> None:
        if self.progress:
            self.progress(standing)

    def begin(self, stage: Stage, threat: Threat, *, total: int, done: int) -> "Pace":
        """A stage that has so many images to judge, of which the verdicts of some are known already."""
        return Pace(self, stage, threat, total, float(done))

    def end(self, stage: Stage, threat: Threat, robust: Tensor, *, seconds: float) -> None:
        """The stage is over; `robust` are the images that it, or the cascade up to it, left."""
        left, total = int(robust.sum()), len(robust)
        ended = Ended(percent(robust), left if self.suite.cascade else None, seconds)
        to_come = self.seconds_of(self.later(stage, threat, left / ranks.world()))
        self.tell(Standing(*self.place(stage, threat), total, total, to_come, ended))

    def place(self, stage: Stage, threat: Threat) -> tuple[str, str, int, int]:
        stages, threats = len(self.suite.stages), len(self.threats)
        number = self.threats.index(threat) * stages + self.suite.stages.index(stage) + 1
        return str(threat), stage.label, number, stages * threats

    def later(self, stage: Stage, threat: Threat, left: float) -> float:
        """The passes that this rank makes in all stages after this one, of which so many images are left."""
        each = [passes_per_image(one, self.classes) for one in self.suite.stages]
        here = sum(each[self.suite.stages.index(stage) + 1 :])
        threats = len(self.threats) - self.threats.index(threat) - 1
        if not self.suite.cascade:
            return self._right * (here + threats * sum(each))
        return left * here + threats * self._right * (each[0] + sum(each[1:]) / 2)

    def seconds_of(self, passes: float, more_passes: float = 0.0, more_seconds: float = 0.0) -> float | None:
        measured = self.passes + more_passes
        return passes * (self.seconds + more_seconds) / measured if measured else None


@dataclass
class Pace:
    """How far one stage is."""

    board: Board
    stage: Stage
    threat: Threat
    total: int
    done: float
    judged: float = 0.0
    passes: float = 0.0

    @contextmanager
    def batch(self, images: int, passes: Passes) -> Iterator[None]:
        """Tells of a batch while it is attacked; `passes` counts what it takes."""
        board, started = self.board, self.board.clock()
        if not board.progress:
            yield
            return

        def look(share: float) -> None:
            board.tell(self._standing(images, share, passes.forward + passes.backward, board.clock() - started))

        with watched(look):
            yield
        spent = passes.forward + passes.backward
        board.seconds, board.passes = board.seconds + board.clock() - started, board.passes + spent
        self.done, self.judged, self.passes = self.done + images, self.judged + images, self.passes + spent
        board.tell(self._standing(0, 0.0, 0.0, 0.0))

    def _standing(self, images: int, share: float, passes: float, seconds: float) -> Standing:
        """While a batch of so many images is at work, of which a share is behind it."""
        judged, taken = self.judged + images * share, self.passes + passes
        each = taken / judged if judged else passes_per_image(self.stage, self.board.classes)
        done = self.done + images * share
        to_come = (self.total - done) * each + self.board.later(self.stage, self.threat, self.total)
        left = self.board.seconds_of(to_come, passes, seconds)
        return Standing(*self.board.place(self.stage, self.threat), done, self.total, left)
