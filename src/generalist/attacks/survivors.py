"""Early exit: an image that is misclassified leaves the attack."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from generalist.attacks.progress import track
from generalist.attacks.view import misclassified

CPU_ROWS = 64  # a pass of this many rows takes a CPU little longer than a pass of a few


class Survivors:
    """Which images of a batch are still classified correctly, and the adversarial versions of the others.

    An attack works on the rows that are left (`rows`, indices into the batch). It reports the candidates that its view
    of the model misclassifies. The model itself, in plain passes and float32, has the last word, so that no verdict
    depends on a rounding difference.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self._model, self._y = model, y
        self.x_adv = x.detach().clone()
        self.rows = torch.arange(len(x), device=x.device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tries_per_image(self) -> int:
        """How many tries per image share a pass: one, and more where only few images are left."""
        rows = CPU_ROWS if self.rows.device.type == "cpu" else len(self.x_adv)  # the whole batch is known to fit
        return max(1, rows // max(1, len(self)))

    def drop(self, candidates: Tensor, suspected: Tensor) -> Tensor | None:
        """Let the images leave whose candidate the model itself misclassifies.

        Args:
            candidates: One point per row that is left, [len(self), ...].
            suspected: Which of them the attack believes to be misclassified, [len(self)].

        Returns:
            Which of the rows stay [len(self)], for the attack to index its own state with; None where all stay.
        """
        wrong = self._confirmed(candidates, suspected)
        if wrong is None:
            return None
        self._settle_(self.rows[wrong], candidates[wrong])
        self.rows = self.rows[~wrong]
        return ~wrong

    def _confirmed(self, candidates: Tensor, suspected: Tensor) -> Tensor | None:
        """Which candidates the model itself gets wrong, or None where there are none."""
        if not suspected.any():
            return None
        wrong = suspected.clone()
        wrong[suspected] = misclassified(self._model, candidates[suspected], self._y[self.rows[suspected]])
        return wrong if wrong.any() else None

    def _settle_(self, rows: Tensor, candidates: Tensor) -> None:
        self.x_adv[rows] = candidates.detach().to(self.x_adv.dtype)


class Copies(Survivors):
    """Several tries per survivor in one batch: `rows` has one entry per try, `number` says which try it is.

    The first successful try counts. The other tries of its image leave with it.
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
    """Make `runs` runs for every survivor, in order; several at once where they fit into one pass."""
    done = 0
    for run in track(range(runs)):
        if run >= done and len(survivors):
            together = range(run, min(runs, run + (1 if one_by_one else survivors.tries_per_image)))
            done = together.stop
            yield together, Copies(survivors, len(together))
