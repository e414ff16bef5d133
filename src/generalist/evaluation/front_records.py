"""What is known of the models of one seed, judged alike: small sealed files that outlive the run folders.

A record has a verdict for every image, so fronts of any models in it, and of several records, can be compared with
intervals that are paired image by image.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from generalist.core.errors import UserError, unknown
from generalist.core.files import read_json, seal_holds, sealed, write_json
from generalist.core.names import UNION
from generalist.core.threat import Threat
from generalist.evaluation.accuracy import percent
from generalist.evaluation.fronts import Front, FrontPoint

VERSION = 1
KIND = "front"
WHOLE_UNION = "union"
"""What asks for the images right under every threat instead of a threat."""


def packed(verdicts: Tensor) -> str:
    """Bits [N] as text, six to a character."""
    return base64.b64encode(np.packbits(verdicts.numpy()).tobytes()).decode()


def unpacked(text: str, images: int) -> Tensor:
    """The bits [N] of such a text, which has to be as long as so many images make it."""
    content = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    if len(content) != -(-images // 8):
        raise ValueError(f"{len(content)} bytes are not {images} verdicts")
    return torch.from_numpy(np.unpackbits(content)[:images].astype(bool))


@dataclass(frozen=True, eq=False)
class JudgedModel:
    """A model by its verdicts, bool [N]: `natural`, and `robust` by suite and threat (right unattacked and attacked).

    `group` is the front it belongs to, `training` tells which training it comes from (points of one dial share it),
    `cost_in_at` is what that training cost, in PGD-10 AT runs.
    """

    name: str
    group: str
    natural: Tensor
    robust: Mapping[str, Mapping[str, Tensor]]
    chosen_by: str = ""
    recipe_sha256: str = ""
    training: str = ""
    cost_in_at: float | None = None
    seconds: float | None = None
    source: str = ""

    def point(self, suite: str, threats: Sequence[str]) -> FrontPoint:
        """Robust is right under all of these threats."""
        right = torch.stack([self.robust[suite][threat] for threat in threats]).all(0)
        return FrontPoint(
            self.name, self.natural, right, self.chosen_by, self.training, self.cost_in_at, self.seconds, self.source
        )

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "group": self.group,
            "natural": percent(self.natural),
            "robust": {suite: {t: percent(bits) for t, bits in row.items()} for suite, row in self.robust.items()},
            "chosen_by": self.chosen_by,
            "recipe_sha256": self.recipe_sha256,
            "training": self.training,
            "cost_in_at": self.cost_in_at,
            "seconds": self.seconds,
            "verdicts": {
                "natural": packed(self.natural),
                "robust": {suite: {t: packed(bits) for t, bits in row.items()} for suite, row in self.robust.items()},
            },
        }

    @classmethod
    def of(cls, row: Mapping[str, Any], images: int) -> "JudgedModel":
        """Read back; its percentages must be those of its verdicts."""
        verdicts = row["verdicts"]
        found = cls(
            name=row["name"],
            group=row["group"],
            natural=unpacked(verdicts["natural"], images),
            robust={
                suite: {threat: unpacked(text, images) for threat, text in rows.items()}
                for suite, rows in verdicts["robust"].items()
            },
            **{key: row[key] for key in ("chosen_by", "recipe_sha256", "training", "cost_in_at", "seconds")},
        )
        again = found.record()
        if any(again[key] != row[key] for key in ("natural", "robust")):
            raise ValueError("figures that are not those of the verdicts")
        return found


@dataclass(frozen=True, eq=False)
class FrontRecord:
    """Models of one seed, all judged on the same images by the same attacks.

    `images_sha256` is of the images with their labels, `attacks` has a digest of each suite's attacks.
    """

    seed: int
    data: str
    split: str
    images: int
    images_sha256: str
    attacks: Mapping[str, str]
    models: tuple[JudgedModel, ...] = ()
    setting: str = ""
    title: str = field(default="", compare=False)  # how a message calls it

    @property
    def suites(self) -> list[str]:
        """Those by which every model was judged."""
        return [suite for suite in self.attacks if all(suite in model.robust for model in self.models)]

    def check_alike(self, other: "FrontRecord", suite: str) -> None:
        """Refuse what is not about the same images and attacks. Validation images may differ from seed to seed."""
        ours, theirs = self._facts(suite), other._facts(suite)
        for aspect in ours:
            if aspect == "images" and self.split != "test" and self.seed != other.seed:
                continue
            if ours[aspect] != theirs[aspect]:
                shown = aspect not in ("images", "attacks")  # digests tell nobody anything
                which = f": {ours[aspect]} and {theirs[aspect]}" if shown else ""
                raise UserError(
                    f"{self.title} and {other.title} cannot be compared, they were evaluated on different"
                    f" {aspect}{which}"
                )

    def _facts(self, suite: str) -> dict[str, Any]:
        return {
            "data": self.data,
            "splits": self.split,
            "numbers of images": self.images,
            "images": self.images_sha256,
            "attacks": self.attacks.get(suite),
        }

    def with_models(self, models: Sequence[JudgedModel], attacks: Mapping[str, str]) -> "FrontRecord":
        """These as well; they take the place of models of the same group and name."""
        new = {(model.group, model.name): model for model in models}
        kept = {(model.group, model.name): model for model in self.models}
        return replace(self, models=tuple((kept | new).values()), attacks={**self.attacks, **attacks})

    def record(self) -> dict[str, Any]:
        about = ("setting", "seed", "data", "split", "images", "images_sha256")
        return {
            "kind": KIND,
            "version": VERSION,
            **{key: getattr(self, key) for key in about},
            "attacks": dict(self.attacks),
            "models": [model.record() for model in self.models],
        }

    def write(self, path: Path) -> None:
        """A sealed file, whole or not at all."""
        write_json(path, sealed(self.record()))


def read_front_record(path: Path) -> FrontRecord:
    """A record that `FrontRecord.write` wrote; one that was changed, damaged or is something else is refused."""
    content = read_json(path)
    if content.get("kind") != KIND:
        raise UserError(f"{path} is neither a run folder nor a record of fronts")
    if seal_holds(content) is not True:
        raise UserError(f"{path} was changed since it was written (its digest differs); make it again")
    if content.get("version") != VERSION:
        raise UserError(f"{path} is of another version of Generalist ({content.get('version')}); make it again")
    about = ("setting", "seed", "data", "split", "images", "images_sha256", "attacks")
    try:
        models = tuple(JudgedModel.of(row, content["images"]) for row in content["models"])
        return FrontRecord(**{key: content[key] for key in about}, models=models, title=str(path))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path} is not a whole record of fronts; make it again") from None


def fronts_of(records: Sequence[FrontRecord], *, suite: str, threat: str | None) -> tuple[list[Front], str]:
    """One front per group and seed, and the threat: the first one if none is given, `union` for all together.

    A norm alone, such as `linf`, is its first threat.
    """
    records = [record for record in records if record.models]
    if not records:
        raise UserError("there are no models to compare")
    for other in records[1:]:
        records[0].check_alike(other, suite)
    models = [(record, model) for record in records for model in record.models]
    for record, model in models:
        if suite not in model.robust:
            raise UserError(f"{model.name} of {record.title} was not judged by suite {suite}")
    shared = [t for t in models[0][1].robust[suite] if all(t in model.robust[suite] for _, model in models)]
    if not shared:
        raise UserError("the models were judged under different threats; there is none in common")
    chosen = _threat(threat, shared)
    threats = shared if chosen == UNION else [chosen]
    found: dict[tuple[str, int], list[FrontPoint]] = {}
    for record, model in models:
        points = found.setdefault((model.group, record.seed), [])
        if any(point.name == model.name for point in points):
            raise UserError(f"{model.name} of {model.group} is there twice with seed {record.seed}")
        points.append(model.point(suite, threats))
    groups = list(dict.fromkeys(group for group, _ in found))
    order = sorted(found, key=lambda key: (groups.index(key[0]), key[1]))
    return [Front(group, seed, tuple(found[group, seed])) for group, seed in order], chosen


def _threat(given: str | None, shared: Sequence[str]) -> str:
    if given is None:
        return shared[0]
    if given in (WHOLE_UNION, UNION):
        if len(shared) < 2:
            raise UserError(f"a union takes two threats or more; the models were judged under {', '.join(shared)}")
        return UNION
    exact = str(Threat.parse(given)) if ":" in given else given
    for threat in shared:
        if exact in (threat, threat.partition(":")[0]):
            return threat
    raise unknown("threat", given, [*shared, WHOLE_UNION])
