"""Images whose fate is decided stop costing anything."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from generalist.attacks.progress import track
from generalist.attacks.view import misclassified

CPU_ROWS = 64  # rows that take a CPU little longer than a few do


class Survivors:
    """Which images of a batch are still classified right, and the adversarial versions of those that are not.

    An attack works on the rows that are left (`rows`, indices into the batch). It reports candidates with what its own
    view of the model thinks of them; the model itself, unfolded and in float32, has the last word, so that no image is
    given up for a rounding difference.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self._model, self._y = model, y
        self.x_adv = x.detach().clone()
        self.rows = torch.arange(len(x), device=x.device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tries_per_image(self) -> int:
        """How many tries of each image may be made at once: one, and more where only few of the batch are left."""
        rows = CPU_ROWS if self.rows.device.type == "cpu" else len(self.x_adv)  # which is known to fit
        return max(1, rows // max(1, len(self)))

    def drop(self, candidates: Tensor, suspected: Tensor) -> Tensor | None:
        """Check the candidates [len(self), ...] that the attack suspects [len(self)] to be misclassified.

        Those that are leave with their candidate as x_adv. Gives back which of the rows stay [len(self)], for the
        attack to compact its own state with, or None where all of them stay.
        """
        wrong = self._confirmed(candidates, suspected)
        if wrong is None:
            return None
        self._settle_(self.rows[wrong], candidates[wrong])
        self.rows = self.rows[~wrong]
        return ~wrong

    def _confirmed(self, candidates: Tensor, suspected: Tensor) -> Tensor | None:
        """Which candidates the model itself gets wrong; None where there is none."""
        if not suspected.any():
            return None
        wrong = suspected.clone()
        wrong[suspected] = misclassified(self._model, candidates[suspected], self._y[self.rows[suspected]])
        return wrong if wrong.any() else None

    def _settle_(self, rows: Tensor, candidates: Tensor) -> None:
        self.x_adv[rows] = candidates.detach().to(self.x_adv.dtype)


class Copies(Survivors):
    """Several tries of each survivor at once: `rows` has all of them, `number` says which try each is.

    The first to win counts, and the other tries of its image leave with it.
    """

    def __init__(self, survivors: Survivors, count: int) -> None:
        self._model, self._y, self.x_adv = survivors._model, survivors._y, survivors.x_adv
        self._survivors = survivors
        self.rows = survivors.rows.repeat(count)
        self.number = torch.arange(count, device=self.rows.device).repeat_interleave(len(survivors))

    def drop(self, candidates: Tensor, suspected: Tensor) -> Tensor | None:
        wrong = self._confirmed(candidates, suspected)
        if wrong is None:
            return None
        tries = wrong.nonzero()[:, 0].tolist()
        first = {int(self.rows[index]): index for index in reversed(tries)}
        rows, won = (torch.tensor(list(part), device=wrong.device) for part in (first.keys(), first.values()))
        self._settle_(rows, candidates[won])
        self._survivors.rows = self._survivors.rows[~torch.isin(self._survivors.rows, rows)]
        stay = ~torch.isin(self.rows, rows)
        self.rows, self.number = self.rows[stay], self.number[stay]
        return stay


def tries(survivors: Survivors, runs: int, *, one_by_one: bool = False) -> Iterator[tuple[range, Copies]]:
    """So many runs for every survivor, in order, several at once where there is room."""
    done = 0
    for run in track(range(runs)):
        if run >= done and len(survivors):
            together = range(run, min(runs, run + (1 if one_by_one else survivors.tries_per_image)))
            done = together.stop
            yield together, Copies(survivors, len(together))
