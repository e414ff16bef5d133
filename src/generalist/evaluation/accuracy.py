"""Accuracy, natural and under attack, with a verdict for every image."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import frozen, misclassified, pgd
from generalist.core.rng import ImageStreams
from generalist.core.threat import Threat
from generalist.core.types import Batch
from generalist.data import Split, sequential_batches
from generalist.distributed import ranks

Progress = Callable[[int, int], None]
"""(images done, images in all)"""


@dataclass(frozen=True)
class Evaluation:
    """Verdicts [N]: right on the image; right on the image and on its attacked version, per threat."""

    natural: Tensor
    robust: Mapping[Threat, Tensor]
    steps: int
    seed: int

    @property
    def union(self) -> Tensor:
        """Right under every threat: the true union."""
        verdicts = self.natural
        for robust in self.robust.values():
            verdicts = verdicts & robust
        return verdicts

    def record(self) -> dict[str, Any]:
        """Percentages for people and machines, ε as a fraction."""
        robust = {str(threat): percent(verdicts) for threat, verdicts in self.robust.items()}
        record: dict[str, Any] = {"images": len(self.natural), "natural": percent(self.natural)}
        record |= {"attack": f"PGD{self.steps}", "seed": self.seed, "robust": robust}
        if robust:
            record |= {"mean_over_norms": sum(robust.values()) / len(robust), "true_union": percent(self.union)}
        return record


@dataclass(frozen=True)
class Change:
    """A difference in percentage points, and half of its 95 % interval over the choice of images."""

    points: float
    margin: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} ±{self.margin:.1f}"

    def record(self) -> dict[str, float]:
        return {"points": round(self.points, 3), "margin": round(self.margin, 3)}


def paired_change(after: Tensor, before: Tensor) -> Change:
    """The mean of the paired differences of verdicts [N], with its margin by the normal approximation."""
    differences = after.float() - before.float()
    spread = differences.std(correction=0).item() / math.sqrt(len(differences))
    return Change(100 * differences.mean().item(), 196 * spread)


def percent(verdicts: Tensor) -> float:
    return round(100.0 * verdicts.float().mean().item(), 2)


def interval(verdicts: Tensor) -> tuple[float, float]:
    """Wilson's 95 % interval of a percentage: what images drawn anew could show, not what other seeds could."""
    low, high = wilson(int(verdicts.sum()), len(verdicts))
    return round(100 * low, 2), round(100 * high, 2)


def wilson(right: int, count: int, *, z: float = 1.959964) -> tuple[float, float]:
    """The shares that `right` of `count` does not rule out at the level of z (Wilson 1927)."""
    share, spread = right / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return (0.0 if right == 0 else centre - half), (1.0 if right == count else centre + half)


def evaluate_split(
    model: nn.Module,
    split: Split,
    *,
    threats: Sequence[Threat] = (),
    steps: int = 20,
    batch_size: int = 250,
    seed: int = 0,
    limit: int | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Natural accuracy and PGD-`steps` accuracy under each threat, in float32 and eval mode.

    An image that is wrong unattacked counts as wrong under attack and is not attacked. Every verdict is recomputed on
    the returned image, and an image's random start depends on the seed and the image alone. Ranks share the images.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    total = min(len(split), limit or len(split))
    batch_size = min(batch_size, max(1, math.ceil(total / ranks.world())))
    mine: dict[int, list[Tensor]] = {}
    with frozen(model):
        share = slice(ranks.rank(), None, ranks.world())
        parts = sequential_batches(
            split, batch_size=batch_size, device=device, workers=workers, limit=limit, share=share
        )
        for number, batch in zip(count(ranks.rank(), ranks.world()), parts, strict=False):
            right = ~misclassified(model, batch.x, batch.y)
            mine[number] = [right.cpu()]
            survivors = Batch(batch.x[right], batch.y[right], batch.ids[right])
            for threat in threats:
                verdicts = right.clone()
                if right.any():
                    streams = ImageStreams(seed, "evaluate", str(threat), ids=survivors.ids)
                    x_adv = pgd(model, survivors.x, survivors.y, threat=threat, steps=steps, generator=streams)
                    verdicts[right] = ~misclassified(model, x_adv, survivors.y)
                mine[number].append(verdicts.cpu())
            if progress:
                progress(sum(len(rows[0]) for rows in mine.values()), total)
    everyone = {number: rows for part in ranks.all_gather(mine) for number, rows in part.items()}
    natural, *robust = (torch.cat(column) for column in zip(*(everyone[n] for n in sorted(everyone)), strict=True))
    return Evaluation(natural, dict(zip(threats, robust, strict=True)), steps, seed)
