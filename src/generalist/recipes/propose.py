"""A recipe for somebody's images, with the reason for every choice."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from generalist.core.errors import UserError
from generalist.data import UNREADABLE, Survey
from generalist.recipes.own import LATE, SMALL_IMAGES, base_setting, own_recipe
from generalist.recipes.shipped import Raw

SIZES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 224)
MOST_PIXELS_CPU, MOST_PIXELS = 64, 224
"""The largest side that is proposed without and with a GPU."""
IMBALANCED = 3.0
"""Images of the largest class over those of the smallest, from which on rare classes are drawn more often."""
FEW = 20
"""Training images of a class below which little can be expected."""
STEPS = 2000
"""Steps of training that are aimed at."""
LATE_MODULES = {"resnet18": ["layer4.1", "fc"], "small_cnn": ["conv5", "bn5", "fc"]}
_LISTED = 5
_WIDTH = 34

_PICTURES = ((23, ("4/255", "64/255", "2")), (127, ("8/255", "128/255", "12")), (4096, ("4/255", "64/255", "255")))
_DRAWINGS = ((12, ("3/20", "1", "3")), (20, ("1/10", "3/4", "5")), (4096, ("1/10", "1", "5")))
_STROKES = ((12, ("3/20", "1", "3")), (20, ("1/5", "1", "5")), (4096, ("3/10", "2", "10")))
"""Largest side → ε in ℓ∞, ℓ2 and ℓ1, as the shipped settings have them: CIFAR-10 and ImageNet; Fashion-MNIST; digits,
MNIST."""


@dataclass(frozen=True)
class Proposal:
    """A recipe's fields, a remark for some of them, and what its reader should know."""

    fields: Raw
    remarks: Mapping[str, str]
    notes: tuple[str, ...]

    def text(self, *, name: str, root: str, cost: str) -> str:
        """The recipe as a YAML file with comments. `root` is written as the place of the images."""
        data = {**self.fields["data"], "root": root}
        lines = [
            f"# Proposed by `generalist init` for {root}. Every value may be changed.",
            f"# Train it with `generalist train {name}`; another method with `generalist train {name} --method at`.",
            *([f"# {cost}"] if cost else []),
        ]
        for section, value in {**self.fields, "data": data}.items():
            if section in ("data", "tasks"):
                lines += [section + ":", *(f"  {self._line(key, part, section)}" for key, part in value.items())]
            else:
                lines.append(self._line(section, value, ""))
        return "\n".join(lines) + "\n"

    def _line(self, key: str, value: Any, section: str) -> str:
        flow = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
        line = f"{key}: {flow.removesuffix('...' + chr(10)).strip()}"
        remark = self.remarks.get(f"{section}.{key}" if section else key)
        return f"{line.ljust(_WIDTH)}  # {remark}" if remark else line


def propose(
    survey: Survey, *, method: str, accelerated: bool, model: str | None = None, size: int | None = None
) -> Proposal:
    """Size, network, radii, length and late learners that suit the images.

    Args:
        survey: What the images are.
        method: A shipped method.
        accelerated: Whether there is a GPU.
        model: A network, where one is wanted; pretrained weights of timm and torchvision are tuned.
        size: The side in pixels that images are resized to, where one is wanted.
    """
    remarks, notes = dict[str, str](), list[str]()
    size = _size(survey, size, accelerated, remarks)
    channels = 1 if survey.is_gray else 3
    pretrained = model is not None and model.startswith(("timm/", "torchvision/"))
    base = base_setting(size, accelerated=accelerated)
    data = _data(survey, size, channels, remarks, notes)
    images = sum(survey.counts.values()) * (1 if survey.tests else 0.8) * (1 - data["validation"])
    batch_size = _batch_size(int(images))
    steps = max(1, int(images) // batch_size)
    epochs = 5 * round(min(max(STEPS / steps, 20), 80) / 5)
    radii = _radii(survey, size, channels, remarks, notes)
    network, trains = _network(model, size, accelerated, remarks)
    fields = own_recipe(
        base=base, method=method, data=data, model=network, threats=list(radii.values()),
        shown=[radii["linf"], radii["l2"]], epochs=epochs, batch_size=batch_size, steps=steps, trains=trains,
        tuned=pretrained,
    )  # fmt: skip
    if pretrained:
        fields["init"] = {"from": "pretrained", "epoch": 0}
        remarks["init"] = "the network's published weights, downloaded by its package"
    remarks["extends"] = "optimizers, schedules and the attack in training"
    if method.startswith("generalist-late"):
        remarks["method"] = "late learners, to be mixed afterwards by `generalist dial`"
    remarks["training"] = f"{steps} steps per epoch"
    remarks["mixing"] = "the global model averages over 2.6 epochs"
    return Proposal(fields, remarks, tuple(notes))


def _size(survey: Survey, asked: int | None, accelerated: bool, remarks: dict[str, str]) -> int:
    sides = sorted(survey.sides)
    one = len(sides) == 1
    (low_h, low_w), (high_h, high_w) = sides[0], sides[-1]
    there = f"{low_h}×{low_w}" if one else f"{low_h}×{low_w} to {high_h}×{high_w}"
    most = MOST_PIXELS if accelerated else MOST_PIXELS_CPU
    if asked is not None:
        size = asked
    elif one and low_h == low_w <= most:
        size = low_h
    else:
        size = max(side for side in SIZES if side <= max(min(survey.short_side, most), SIZES[0]))
    how = "" if one and low_h == low_w == size else "; the shorter side is resized, the centre kept"
    remarks["data.size"] = f"height × width here: {there}{how}"
    return size


def _data(survey: Survey, size: int, channels: int, remarks: dict[str, str], notes: list[str]) -> Raw:
    data: Raw = {"name": survey.name, "root": str(survey.root.resolve()), "size": size}
    if survey.name == "folder":
        data["channels"] = channels
        readable = survey.looked_at - len(survey.broken)
        remarks["data.channels"] = "all files are gray" if channels == 1 else "colour"
        if channels == 3 and survey.gray:
            remarks["data.channels"] = f"{survey.gray} of {readable} files are gray, and read as colour"
    if survey.broken:
        share = len(survey.broken) / survey.looked_at
        listed = ", ".join(os.path.relpath(file, survey.root) for file in survey.broken[:_LISTED])
        more = f" and {len(survey.broken) - _LISTED} more" if len(survey.broken) > _LISTED else ""
        said = f"{len(survey.broken)} of {survey.looked_at} files cannot be read and are left out: {listed}{more}"
        if share >= 0.5:
            raise UserError(f"{survey.root}: {said}; give a folder of images that can be read")
        notes.append(said)
        if share > UNREADABLE / 2:
            data["unreadable"] = min(0.9, round(2 * share + 0.01, 2))  # a split may have more of them than its share
            remarks["data.unreadable"] = said
    there = [count for count in survey.counts.values() if count]
    least, most = min(survey.counts.values()), max(survey.counts.values())
    if absent := [name for name, count in survey.counts.items() if not count]:
        notes.append(f"no training image of {', '.join(absent[:_LISTED])}")
    elif least < FEW:
        few = [name for name, count in survey.counts.items() if count < FEW]
        notes.append(f"fewer than {FEW} training images of {', '.join(few[:_LISTED])}: little can be expected of them")
    if most > IMBALANCED * min(there):
        said = f"classes have {min(there)} to {most} images"
        data["balance"] = 0.5
        remarks["data.balance"] = f"{said}; 0 draws every image once per epoch, 1 all classes alike"
        notes.append(f"{said}, so rare ones are drawn more often (data.balance)")
    if not survey.tests:
        notes.append("no test split, so a fifth of the images is held out as one, always the same")
    data["validation"] = 0.15
    data["crop"] = size // 8
    data["flip"] = channels == 3
    remarks["data.flip"] = "false where left and right mean something, as in text"
    return data


def _batch_size(images: int) -> int:
    wanted = 128 if images >= 5000 else 64 if images >= 1000 else 32
    return max(2, min(wanted, images // 4))


def _network(model: str | None, size: int, accelerated: bool, remarks: dict[str, str]) -> tuple[Raw, Any]:
    """The section of the network, and what a late natural learner trains of it."""
    remarks[f"tasks.{LATE}"] = "what a late natural learner trains"
    if model is not None:
        return {"name": model}, LATE_MODULES.get(model, {"last": "1/4"})
    name, width = ("small_cnn", 16) if size <= SMALL_IMAGES else ("resnet18", 64 if accelerated else 16)
    remarks["model"] = "a wider network is better and dearer"
    return {"name": name, "width": width}, LATE_MODULES[name]


def _radii(survey: Survey, size: int, channels: int, remarks: dict[str, str], notes: list[str]) -> dict[str, str]:
    """ε by norm: as the field has it for such images, but never more than half the way to another class."""
    images, labels = survey.sample(size=size, channels=channels)
    extreme = float(((images < 0.1) | (images > 0.9)).float().mean())
    table = _PICTURES if channels == 3 else _STROKES if extreme > 0.7 else _DRAWINGS
    usual = next(radii for side, radii in table if size <= side)
    found = {}
    for norm, eps in zip(("linf", "l2", "l1"), usual, strict=True):
        half = _half_way(images, labels, norm)
        if half is not None and half < Fraction(eps):
            eps = _rounded_down(half)
            notes.append(f"images of two classes are so near each other that {norm}:{eps} is as far as it makes sense")
        found[norm] = f"{norm}:{eps}"
    kind = "colour" if channels == 3 else "gray"
    remarks["validation"] = f"radii that are usual for {kind} images of {size} pixels"
    return found


def _half_way(images: Tensor, labels: Tensor, norm: str) -> float | None:
    """Half the distance from an image to the nearest of another class, for all but the nearest hundredth."""
    order = {"linf": float("inf"), "l2": 2.0, "l1": 1.0}[norm]
    distances = torch.cdist(images.flatten(1), images.flatten(1), p=order)
    distances[labels[:, None] == labels[None, :]] = float("inf")
    nearest = distances.amin(1)
    nearest = nearest[(nearest > 0) & nearest.isfinite()]  # the same image in two classes says nothing of radii
    return float(nearest.quantile(0.01)) / 2 if len(nearest) else None


def _rounded_down(eps: float) -> str:
    levels = int(eps * 255 + 1e-3)  # distances are rounded
    return f"{levels}/255" if levels >= 1 else "1/255"


def written_root(root: Path, out: Path) -> str:
    """The images' place as the file at `out` says it: relative where they are beside or below it."""
    absolute, folder = root.resolve(), out.resolve().parent
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)
