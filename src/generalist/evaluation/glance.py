"""A glance at a model: its mean losses on some images, and what it says of a few of them."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalist.attacks import frozen, pgd
from generalist.core.rng import ImageStreams
from generalist.core.threat import Threat
from generalist.data import Split, sequential_batches

LOSS_IMAGES = 200
"""Losses are means over so many images: enough to see a barrier between two models."""
EXAMPLES = 6
NATURAL = "natural"


@dataclass(frozen=True)
class Example:
    """One image: its row in the split, its label, what the model says (class, confidence) with and without an attack,
    and the attacked images as bytes of uint8 [C, H, W], rounded for display."""

    row: int
    label: int
    said: Mapping[str, tuple[int, float]]
    attacked: Mapping[str, bytes]

    def record(self) -> dict[str, Any]:
        said = {measure: list(answer) for measure, answer in self.said.items()}
        attacked = {threat: base64.b64encode(pixels).decode() for threat, pixels in self.attacked.items()}
        return {"row": self.row, "label": self.label, "said": said, "attacked": attacked}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Example":
        said = {measure: (int(what), float(sure)) for measure, (what, sure) in record["said"].items()}
        attacked = {threat: base64.b64decode(text, validate=True) for threat, text in record["attacked"].items()}
        return cls(int(record["row"]), int(record["label"]), said, attacked)


@dataclass(frozen=True)
class Glance:
    """`losses`: mean cross-entropy, natural and under PGD per threat; `examples`: an image of each of a few classes."""

    losses: Mapping[str, float] = field(default_factory=dict)
    examples: Sequence[Example] = ()

    def record(self) -> dict[str, Any]:
        return {"losses": dict(self.losses), "examples": [example.record() for example in self.examples]}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Glance":
        """Read back; a TypeError, KeyError or ValueError where it is not the record of one."""
        losses = {str(measure): float(loss) for measure, loss in record["losses"].items()}
        return cls(losses, [Example.of(example) for example in record["examples"]])


def glance(
    model: nn.Module, split: Split, *, threats: Sequence[Threat], images: int, steps: int = 20, seed: int = 0
) -> Glance:
    """Mean losses on the first `images` (at most 200) of a split, all of them attacked by PGD, and a few examples.

    Unlike robust accuracy, the loss under attack counts images that are wrong unattacked with their attacked loss.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    count = min(images, LOSS_IMAGES, len(split))
    batch = next(sequential_batches(split, batch_size=count, device=device, limit=count))
    rows = example_rows(split.labels[:count])
    losses: dict[str, float] = {}
    said: dict[str, list[tuple[int, float]]] = {}
    shown: dict[str, list[bytes]] = {}
    with frozen(model):
        for measure, x in _inputs(model, batch.x, batch.y, batch.ids, threats=threats, steps=steps, seed=seed):
            with torch.no_grad():
                logits = model(x).float()
            losses[measure] = round(float(F.cross_entropy(logits, batch.y)), 5)
            sure, what = logits[rows].softmax(1).max(1)
            said[measure] = [(int(w), round(float(s), 4)) for w, s in zip(what, sure, strict=True)]
            shown[measure] = as_pixels(x[rows])
    examples = [
        Example(
            row=row,
            label=int(split.labels[row]),
            said={measure: answers[place] for measure, answers in said.items()},
            attacked={m: pixels[place] for m, pixels in shown.items() if m != NATURAL},
        )
        for place, row in enumerate(rows)
    ]
    return Glance(losses, examples)


def as_pixels(x: Tensor) -> list[bytes]:
    """Images [B, C, H, W], uint8 or float in [0, 1], as bytes of uint8, rounded for display."""
    whole = (x.detach() * 255).round().to(torch.uint8) if x.is_floating_point() else x
    return [image.numpy().tobytes() for image in whole.cpu()]


def _inputs(
    model: nn.Module, x: Tensor, y: Tensor, ids: Tensor, *, threats: Sequence[Threat], steps: int, seed: int
) -> list[tuple[str, Tensor]]:
    """The images as they are, and attacked under each threat."""
    attacked = [
        (str(t), pgd(model, x, y, threat=t, steps=steps, generator=ImageStreams(seed, "glance", str(t), ids=ids)))
        for t in threats
    ]
    return [(NATURAL, x), *attacked]


def example_rows(labels: Tensor, *, count: int = EXAMPLES) -> list[int]:
    """The first image of each of the first classes that occur; more of them where there are fewer classes."""
    order: list[int] = []
    rest = list(range(len(labels)))
    while rest and len(order) < count:
        seen: set[int] = set()
        for row in list(rest):
            if int(labels[row]) not in seen and len(order) < count:
                seen.add(int(labels[row]))
                order.append(row)
                rest.remove(row)
    return order
