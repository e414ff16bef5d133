"""What a model takes for what, without and under attack, and which pixels it looks at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.attacks.view import steady_forward
from generalist.core.errors import RunError, UserError
from generalist.core.threat import Threat
from generalist.data import Split, sequential_batches
from generalist.evaluation.attacked import attack_suite
from generalist.evaluation.classwise import Classwise, class_names
from generalist.evaluation.standing import Progress
from generalist.evaluation.suite import Suite
from generalist.evaluation.tradeoff import NATURAL
from generalist.evaluation.verdicts import Verdicts
from generalist.models.gradcam import gradcam

Array = NDArray[Any]


@dataclass(frozen=True)
class Confusion:
    """How many of the `images` of one class are taken for another one; classes by their index."""

    label: int
    predicted: int
    count: int
    images: int

    @property
    def percent(self) -> float:
        """Of the images of the class."""
        return 100 * self.count / self.images


@dataclass(frozen=True, eq=False)
class Example:
    """One image, its attacked versions, and what the model says and looks at.

    The keys are `natural` and the threats; `x_adv` and `perturbation` have the threats alone.

    Args:
        index: Which of the explained images it is.
        label: Its class.
        image: uint8 [C, H, W].
        x_adv: The attacked image, float32 [C, H, W] in [0, 1]. An image that is wrong without an attack stays as it is.
        perturbation: x_adv − x, float32 [C, H, W].
        predicted: The class that the model gives.
        confidence: The probability of that class.
        heat: Grad-CAM of that class, float32 [H, W] in [0, 1].
    """

    index: int
    label: int
    image: Array
    x_adv: Mapping[str, Array]
    perturbation: Mapping[str, Array]
    predicted: Mapping[str, int]
    confidence: Mapping[str, float]
    heat: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Predictions of N images without and under attack, and E examples with Grad-CAM, as plain arrays.

    Mappings have the keys `natural` and the threats (`views`), or the threats alone.

    Args:
        classes: The names of the K classes, in the order of their labels; numbers where they have none.
        threats: Such as "linf:8/255".
        attack: The attack, as tables call it.
        image_ids: A name for each image, made of its pixels and its label, [N].
        labels: int64 [N].
        predicted: int64 [N] each. Under attack, an image that is wrong without an attack keeps its prediction.
        indices: Which images are the examples, [E].
        images: uint8 [E, C, H, W].
        x_adv: float32 [E, C, H, W] per threat.
        perturbations: x_adv − x, float32 [E, C, H, W] per threat.
        confidence: Probability of the predicted class, float32 [E] each.
        heat: Grad-CAM of the predicted class, float32 [E, H, W] in [0, 1] each.
        about: Which run, model, data, split and seed.
    """

    classes: tuple[str, ...]
    threats: tuple[str, ...]
    attack: str
    image_ids: tuple[str, ...]
    labels: Array
    predicted: Mapping[str, Array]
    indices: Array
    images: Array
    x_adv: Mapping[str, Array]
    perturbations: Mapping[str, Array]
    confidence: Mapping[str, Array]
    heat: Mapping[str, Array]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def views(self) -> tuple[str, ...]:
        """`natural`, then the threats."""
        return NATURAL, *self.threats

    @property
    def confusion(self) -> dict[str, Array]:
        """int64 [K, K] per view: the row is the class, the column what it is taken for."""
        return {view: _matrix(self.labels, self.predicted[view], len(self.classes)) for view in self.views}

    @property
    def classwise(self) -> Classwise:
        """Accuracy by class, without and under attack."""
        right = {view: self.predicted[view] == self.labels for view in self.views}
        return Classwise.of(self.labels, right[NATURAL], {threat: right[threat] for threat in self.threats},
                            classes=self.classes)  # fmt: skip

    def confusions(self, view: str, *, most: int | None = None) -> list[Confusion]:
        """Which classes are taken for which, the largest share of a class first; `most` of them."""
        matrix = self.confusion[view]
        found = [
            Confusion(label, predicted, int(matrix[label, predicted]), int(matrix[label].sum()))
            for label, predicted in zip(*map(np.ndarray.tolist, matrix.nonzero()), strict=True)
            if label != predicted
        ]
        return sorted(found, key=lambda one: (-one.percent, -one.count, one.label, one.predicted))[:most]

    @property
    def examples(self) -> list[Example]:
        """The chosen images one by one."""
        return [
            Example(
                index=int(index),
                label=int(self.labels[index]),
                image=self.images[place],
                x_adv={threat: self.x_adv[threat][place] for threat in self.threats},
                perturbation={threat: self.perturbations[threat][place] for threat in self.threats},
                predicted={view: int(self.predicted[view][index]) for view in self.views},
                confidence={view: float(self.confidence[view][place]) for view in self.views},
                heat={view: self.heat[view][place] for view in self.views},
            )
            for place, index in enumerate(self.indices)
        ]

    def survives(self, index: int) -> bool:
        """Whether image `index` is right without and under every attack."""
        return all(self.predicted[view][index] == self.labels[index] for view in self.views)

    def record(self) -> dict[str, Any]:
        """Everything but the pixels and the maps, for JSON."""
        return {
            **self.about,
            "classes": list(self.classes),
            "threats": list(self.threats),
            "attack": self.attack,
            "images": len(self.labels),
            "accuracy": self.classwise.record(),
            "confusion": {view: matrix.tolist() for view, matrix in self.confusion.items()},
            "labels": self.labels.tolist(),
            "predicted": {view: self.predicted[view].tolist() for view in self.views},
            "examples": [
                {"index": one.index, "label": one.label, "predicted": one.predicted, "confidence": one.confidence}
                for one in self.examples
            ],
        }

    def arrays(self) -> dict[str, Array]:
        """All arrays by name, for an .npz file; `from_arrays` reads them back."""
        found = {"labels": self.labels, "indices": self.indices, "images": self.images}
        for name, keys in _MAPPINGS.items():
            views = self.views if keys == "views" else self.threats
            found |= {f"{name}_{place}": getattr(self, name)[view] for place, view in enumerate(views)}
        return found

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Array],
        *,
        classes: Sequence[str],
        threats: Sequence[str],
        attack: str,
        image_ids: Sequence[str],
        about: Mapping[str, Any],
    ) -> "Explanation":
        """What `arrays` wrote, with what is no array."""
        views = (NATURAL, *threats)
        mappings = {
            name: {view: arrays[f"{name}_{place}"] for place, view in enumerate(views if keys == "views" else threats)}
            for name, keys in _MAPPINGS.items()
        }
        return cls(
            tuple(classes), tuple(threats), attack, tuple(image_ids), labels=arrays["labels"],
            indices=arrays["indices"], images=arrays["images"], about=about, **mappings,
        )  # fmt: skip


_MAPPINGS = {"predicted": "views", "confidence": "views", "heat": "views", "x_adv": "threats",
             "perturbations": "threats"}  # fmt: skip
"""The fields of an explanation that have an array for each view, or for each threat."""


def _matrix(labels: Array, predicted: Array, classes: int) -> Array:
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def explain(
    model: nn.Module,
    split: Split,
    *,
    threats: Sequence[Threat],
    suite: Suite,
    classes: Sequence[str] = (),
    images: int = 200,
    examples: int = 8,
    seed: int = 0,
    batch_size: int = 250,
    workers: int = 0,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Attack the first `images` of a split by the suite, as an evaluation does, and look at what the model says.

    Up to half of the examples survive every attack, the others break; `choose_examples` says which.
    """
    for name, value in (("images", images), ("examples", examples)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    attacked = attack_suite(
        model, split, suite, threats=threats, batch_size=batch_size, limit=images, workers=workers,
        verdicts=Verdicts(None, model="", seed=seed), keep_images=True, progress=progress,
    )  # fmt: skip
    batches = sequential_batches(split, batch_size=batch_size, device=device, workers=workers, limit=images)
    x = {NATURAL: torch.cat([batch.x.cpu() for batch in batches])}
    x |= {str(threat): x_adv for threat, x_adv in attacked.x_adv.items()}
    logits = {view: _logits(model, seen, batch_size, device) for view, seen in x.items()}
    undefined = sum(int(found.isnan().any(1).sum()) for found in logits.values())
    if undefined:
        raise RunError(f"the model's logits of {undefined} images are NaN; there is nothing to explain")
    predicted = {view: found.argmax(1) for view, found in logits.items()}
    labels = attacked.labels
    right = torch.stack([guess == labels for guess in predicted.values()])
    chosen = choose_examples(labels.tolist(), right[0].tolist(), right.all(0).tolist(), count=examples)
    rows = torch.tensor(chosen, dtype=torch.int64)
    clean = x[NATURAL][rows]
    return Explanation(
        classes=class_names(classes, logits[NATURAL].shape[1]),
        threats=tuple(str(threat) for threat in threats),
        attack=list(suite.columns)[-1],
        image_ids=tuple(attacked.examples),
        labels=labels.numpy(),
        predicted={view: guess.numpy() for view, guess in predicted.items()},
        indices=rows.numpy(),
        images=_plain(clean * 255).round().astype(np.uint8),
        x_adv={str(threat): _plain(x[str(threat)][rows]) for threat in threats},
        perturbations={str(threat): _plain(x[str(threat)][rows] - clean) for threat in threats},
        confidence={view: found[rows].softmax(1).amax(1).numpy() for view, found in logits.items()},
        heat={view: _heat(model, seen[rows], device) for view, seen in x.items()},
        about=dict(about or {}) | {"seed": seed},
    )


def _plain(x: Tensor) -> Array:
    """In the order of its dimensions, whatever the memory layout was."""
    return x.contiguous().numpy()


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor, batch_size: int, device: torch.device) -> Tensor:
    """As verdicts are made: eval mode, full precision, independent of the batch."""
    with frozen(model), torch.autocast(device.type, enabled=False):
        return torch.cat([steady_forward(model, part.to(device)).float().cpu() for part in x.split(batch_size)])


def _heat(model: nn.Module, x: Tensor, device: torch.device) -> Array:
    """A few at a time: all feature maps are kept for the backward pass."""
    return _plain(torch.cat([gradcam(model, part.to(device)).cpu() for part in x.split(32)]))


def choose_examples(
    labels: Sequence[int], natural: Sequence[bool], survives: Sequence[bool], *, count: int
) -> list[int]:
    """Indices of up to `count` images: half survive every attack, half are right and break; in this order.

    Each is the first image of a class that has been chosen least so far. What one kind lacks the other has more of, and
    images that are wrong without an attack fill up the rest.
    """
    kinds = [
        [index for index, kept in enumerate(survives) if kept],
        [index for index, right in enumerate(natural) if right and not survives[index]],
        [index for index, right in enumerate(natural) if not right],
    ]
    survivors, broken = len(kinds[0]), len(kinds[1])
    first = min(survivors, max(count - count // 2, count - broken))
    second = min(broken, count - first)
    times: dict[int, int] = {}
    chosen: list[int] = []
    for kind, wanted in zip(kinds, (first, second, count - first - second), strict=True):
        for _ in range(min(wanted, len(kind))):
            best = min(kind, key=lambda index: (times.get(labels[index], 0), index))
            kind.remove(best)
            chosen.append(best)
            times[labels[best]] = times.get(labels[best], 0) + 1
    return chosen


@dataclass(frozen=True)
class Gallery:
    """Images by which several models differ, as indices: `only_right[name][view]` and `only_wrong[name][view]`.

    Args:
        views: `natural`, and the threats that all models were attacked by.
        only_right: Images that this model gets right and all others get wrong.
        only_wrong: Images that this model gets wrong and all others get right.
    """

    views: tuple[str, ...]
    only_right: Mapping[str, Mapping[str, tuple[int, ...]]]
    only_wrong: Mapping[str, Mapping[str, tuple[int, ...]]]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        plain = {
            kind: {name: {view: list(found) for view, found in rows.items()} for name, rows in of.items()}
            for kind, of in (("only_right", self.only_right), ("only_wrong", self.only_wrong))
        }
        return {"views": list(self.views), **plain}


def gallery(explanations: Mapping[str, Explanation]) -> Gallery:
    """The images that one model alone gets right, or wrong, without and under attack.

    Args:
        explanations: By name, at least two, of the same images.

    Returns:
        Indices of the images, per model and view.
    """
    if len(explanations) < 2:
        raise UserError(f"a gallery is of at least two models, got {len(explanations)}")
    (name, first), *others = explanations.items()
    for other, explanation in others:
        if explanation.image_ids != first.image_ids:
            raise UserError(f"{name} and {other} were explained on different images; a gallery needs the same")
    shared = [threat for threat in first.threats if all(threat in one.threats for _, one in others)]
    if not shared:
        raise UserError(
            f"the models have no threat in common: {'; '.join(' '.join(one.threats) for one in explanations.values())}"
        )
    views = (NATURAL, *shared)
    right = {view: np.stack([one.predicted[view] == one.labels for one in explanations.values()]) for view in views}
    names = list(explanations)
    return Gallery(
        views,
        {who: {view: _alone(right[view], place) for view in views} for place, who in enumerate(names)},
        {who: {view: _alone(~right[view], place) for view in views} for place, who in enumerate(names)},
    )


def _alone(verdicts: Array, place: int) -> tuple[int, ...]:
    """Columns in which this row is true and no other one."""
    return tuple((verdicts[place] & (verdicts.sum(0) == 1)).nonzero()[0].tolist())
