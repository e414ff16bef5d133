"""Accuracy, natural and under attack, with a verdict for every image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import frozen, misclassified, pgd
from generalist.core.rng import ImageStreams
from generalist.core.threat import Threat
from generalist.core.types import Batch
from generalist.data import Split, ordered

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
            record |= {"mean_union": sum(robust.values()) / len(robust), "true_union": percent(self.union)}
        return record


def percent(verdicts: Tensor) -> float:
    return round(100.0 * verdicts.float().mean().item(), 2)


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
    the returned image, and an image's random start depends on the seed and the image alone.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    total = min(len(split), limit or len(split))
    natural: list[Tensor] = []
    robust: dict[Threat, list[Tensor]] = {threat: [] for threat in threats}
    with frozen(model):
        for batch in ordered(split, batch_size=batch_size, device=device, workers=workers, limit=limit):
            right = ~misclassified(model, batch.x, batch.y)
            natural.append(right.cpu())
            survivors = Batch(batch.x[right], batch.y[right], batch.ids[right])
            for threat in threats:
                verdicts = right.clone()
                if right.any():
                    streams = ImageStreams(seed, "evaluate", str(threat), ids=survivors.ids)
                    x_adv = pgd(model, survivors.x, survivors.y, threat=threat, steps=steps, generator=streams)
                    verdicts[right] = ~misclassified(model, x_adv, survivors.y)
                robust[threat].append(verdicts.cpu())
            if progress:
                progress(sum(map(len, natural)), total)
    return Evaluation(torch.cat(natural), {t: torch.cat(v) for t, v in robust.items()}, steps, seed)
