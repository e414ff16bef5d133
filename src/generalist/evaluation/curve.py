"""Accuracy against ε: the smallest distance at which each image is known to be misclassified gives the whole curve.

An image that is wrong unattacked is at distance 0, one for which nothing was found at infinity (`distances` says how
they are found). The accuracy at ε is the share of the images with a distance above ε.
"""

import bisect
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks.view import judged, pad_rows
from generalist.core.errors import UserError
from generalist.core.files import fingerprint
from generalist.core.names import CURVE
from generalist.core.threat import Threat
from generalist.data import Split, sequential_batches
from generalist.distributed import ranks
from generalist.evaluation.accuracy import percent
from generalist.evaluation.attacked import FLAG_IMAGES
from generalist.evaluation.distances import REACH, RECORD, VERSION, DistanceStore, Found, find_distances
from generalist.evaluation.identity import model_hash, verdict_key
from generalist.evaluation.probe import IMAGES as PROBE_IMAGES
from generalist.evaluation.probe import probe
from generalist.evaluation.records import AGAIN, read_sealed
from generalist.evaluation.red_flags import Flag, examine_model, large_eps, nan_logits
from generalist.evaluation.verdicts import example_ids
from generalist.version import __version__

SHOWN = tuple(Fraction(part, 4) for part in (1, 2, 4, 6, 8))
"""The radii of a table, as multiples of the threat's."""

Progress = Callable[[float, int, float], None]
"""(images done, images in all, share of all the work done)"""
Broken = Mapping[str, Sequence[tuple[Fraction, frozenset[str]]]]
"""What other evaluations of a model found, by norm: a radius, and the names of the images broken at it."""


@dataclass(frozen=True)
class Curve:
    """The curve of one threat. `distances` [N] are in its norm; `found_by` has the attack that found each."""

    threat: Threat
    distances: Sequence[float]
    found_by: Sequence[str]

    @property
    def eps_max(self) -> Fraction:
        return REACH * self.threat.eps

    @property
    def median(self) -> float:
        return statistics.median_low(self.distances)

    @property
    def auc(self) -> float:
        """∫ accuracy dε from 0 to eps_max, accuracy from 0 to 1: the mean distance, cut off at eps_max."""
        reach = float(self.eps_max)
        return sum(min(distance, reach) for distance in self.distances) / len(self.distances)

    @cached_property
    def _sorted(self) -> list[float]:
        return sorted(self.distances)

    def accuracy(self, eps: float | Fraction) -> float:
        """In percent, at a radius in pixel units."""
        above = len(self.distances) - bisect.bisect_right(self._sorted, float(eps))
        return round(100 * above / len(self.distances), 2)

    def steps(self) -> tuple[list[float], list[float]]:
        """Where the curve falls, and to which accuracy in percent, from 0 to eps_max."""
        reach = float(self.eps_max)
        where = [0.0, *sorted({d for d in self.distances if 0 < d < reach}), reach]
        return where, [self.accuracy(eps) for eps in where]

    def record(self) -> dict[str, Any]:
        names = dict.fromkeys(name for name in self.found_by if name)
        return {
            "norm": self.threat.norm,
            "eps": str(self.threat.eps),
            "distances": [None if math.isinf(distance) else distance for distance in self.distances],
            "attacks": {name: list(self.found_by).count(name) for name in sorted(names)},
            "auc": self.auc,
            "eps_max": float(self.eps_max),
            "median": None if math.isinf(self.median) else self.median,
            "accuracy": {str(part): self.accuracy(part * self.threat.eps) for part in SHOWN},
        }


@dataclass(frozen=True)
class CurveResult:
    """Minimal distances per image and threat. `print(result)` is a table, `record()` is all of it as JSON."""

    curves: Mapping[Threat, Curve]
    natural: Tensor
    examples: Sequence[str]
    seed: int
    model: str
    flags: Sequence[Flag] = ()
    notes: Sequence[str] = ()
    date: str = ""
    wall_seconds: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [["", *HEADS]]
        for threat, row in self.table().items():
            lines.append([threat, *row.values()])
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        rows = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
        flags = [f"red flag: {flag.message}" for flag in self.flags]
        return "\n".join(line.rstrip() for line in [f"{len(self.natural)} images, accuracy in %", *rows, *flags])

    def table(self) -> dict[str, dict[str, str]]:
        """The cells of the table by threat and column."""
        return {threat: curve_cells(row) for threat, row in curve_rows(self.record()).items()}

    def record(self) -> dict[str, Any]:
        """Everything that another evaluator needs to draw the curve again."""
        return {
            "suite": CURVE,
            "images": len(self.natural),
            "seed": self.seed,
            "date": self.date,
            "natural": percent(self.natural),
            "threats": {str(threat): curve.record() for threat, curve in self.curves.items()},
            "model_sha256": self.model,
            "versions": {"generalist": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "wall_seconds": round(self.wall_seconds, 3),
            "red_flags": [flag.record() for flag in self.flags],
            "notes": list(self.notes),
            "examples": list(self.examples),
            **self.about,
        }


HEADS = ("0", "¼ε", "½ε", "ε", "1½ε", "2ε", "median distance", "AUC")
"""The columns of a table."""


def curve_rows(record: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """The figures of a record by threat, in the order of HEADS."""
    return {
        threat: [record["natural"], *row["accuracy"].values(), row["median"], row["auc"]]
        for threat, row in record["threats"].items()
    }


def curve_cells(row: Sequence[float | None]) -> dict[str, str]:
    """The figures of a row as text, by column."""
    *percents, median, auc = row
    cells = [*(f"{value:.2f}" for value in percents), "none found" if median is None else f"{median:.4g}", f"{auc:.4g}"]
    return dict(zip(HEADS, cells, strict=True))


def read_curve(path: Path) -> dict[str, Any]:
    """A curve's record as `generalist eval` wrote it. Its figures are recomputed from the distances of its images."""
    record = read_sealed(path)
    try:
        curves = record_curves(record)
        agrees = record["natural"] == percent(_right(curves)) and len(record["examples"]) == record["images"]
        for curve, row in zip(curves, record["threats"].values(), strict=True):
            fresh = curve.record()
            agrees &= (
                len(curve.distances) == record["images"] == sum(row["attacks"].values()) + row["distances"].count(None)
            )
            agrees &= all(fresh[key] == row[key] for key in fresh if key != "attacks")
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, UserError):
        raise UserError(f"{path} is not the record of a curve; {AGAIN}") from None
    if not agrees:
        raise UserError(f"{path} has figures that are not those of its distances; {AGAIN}")
    return record


def record_curves(record: Mapping[str, Any]) -> list[Curve]:
    """The curves of a record, a threat each."""
    curves = []
    for threat, row in record["threats"].items():
        distances = [math.inf if distance is None else float(distance) for distance in row["distances"]]
        curves.append(Curve(Threat.parse(threat), distances, [""] * len(distances)))
    return curves


def evaluate_curve(
    model: nn.Module,
    split: Split,
    *,
    threats: Sequence[Threat],
    seed: int = 0,
    batch_size: int = 250,
    limit: int | None = None,
    workers: int = 0,
    cache: Path | None = None,
    broken: Callable[[str], Broken] | None = None,
    progress: Progress | None = None,
) -> CurveResult:
    """The minimal distances of every image under each threat; those found in `cache` are not computed again.

    The radius of a threat says where the ladder of radii lies. `broken` tells what other evaluations of the model of a
    hash found. Ranks share the images.
    """
    began = time.perf_counter()
    if not threats:
        raise UserError("a curve needs at least one threat, such as linf:8/255")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    total = min(len(split), limit or len(split))
    batch_size = min(batch_size, math.ceil(total / ranks.world()))
    batches = list(sequential_batches(split, batch_size=batch_size, device=device, workers=workers, limit=limit))
    some = torch.cat([batch.x for batch in batches[: FLAG_IMAGES // batch_size + 1]])[:FLAG_IMAGES]
    probed = probe(model, pad_rows(some[:PROBE_IMAGES]), split.labels[:limit], gradients=True)
    model = probed.model
    large = (large_eps(threat, pixels=some[0].numel()) for threat in threats)
    flags = [*probed.flags, *(flag for flag in large if flag is not None)]
    for message in [*probed.notes, *(flag.message for flag in flags)] if ranks.is_main() else ():
        warnings.warn(message, stacklevel=2)  # at once: the attacks may take hours
    key = verdict_key(model, split.shape) if cache is not None else ""
    known_broken = {} if broken is None else broken(model_hash(model))
    names = [example_ids(batch.x, batch.y) for batch in batches]
    every = [name for part in names for name in part]
    curves: dict[Threat, Curve] = {}
    for number, threat in enumerate(threats):
        store = DistanceStore(cache, fingerprint([VERSION, key, str(threat), seed]))
        caps = _caps(known_broken.get(threat.norm, ()))
        known = store.read()
        mine: dict[str, Found] = {}
        done = 0
        for index in range(ranks.rank(), len(batches), ranks.world()):
            (x, y, *_), labels = batches[index], names[index]
            here = [name for name in labels if name not in known]

            def tell(share: float, before: int = done, images: int = len(here), number: int = number) -> None:
                at = min(total, (before + share * images) * min(ranks.world(), len(batches)))
                if progress is not None:
                    progress(at, total, (number + at / total) / len(threats))

            if here:
                fresh = torch.tensor([name not in known for name in labels], device=device)
                room = [caps.get(name, math.inf) for name in here]
                found = find_distances(model, x[fresh], y[fresh], threat=threat, seed=seed, caps=room, tell=tell)
                rows = dict(zip(here, found, strict=True))
                store.write(rows)
                mine |= rows
            done += len(labels)
        everyone = {**known, **{name: row for part in ranks.all_gather(mine) for name, row in part.items()}}
        curves[threat] = _capped(threat, [everyone[name] for name in every], every, caps)
    labels_of = torch.cat([batch.y for batch in batches])[: len(some)]
    flags += examine_model(model, some, labels_of, threat=threats[0], seed=seed)
    undefined = sum(int(judged(model, batch.x, batch.y)[1].sum()) for batch in batches)
    flags += [nan_logits(undefined, "clean")] if undefined else []
    curves = _consistent(curves)
    return CurveResult(
        curves, _right(list(curves.values())), every, seed, model_hash(model), tuple(flags), probed.notes,
        datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - began,
    )  # fmt: skip


def _right(curves: Sequence[Curve]) -> Tensor:
    """[N]: the images that no threat has at distance 0, which are right unattacked."""
    return torch.tensor([min(row) > 0 for row in zip(*(curve.distances for curve in curves), strict=True)])


def _caps(found: Sequence[tuple[Fraction, frozenset[str]]]) -> dict[str, float]:
    """The smallest radius at which another evaluation broke an image, by its name."""
    caps: dict[str, float] = {}
    for eps, names in sorted(found, key=lambda one: one[0], reverse=True):
        caps |= dict.fromkeys(names, float(eps))
    return caps


def _capped(threat: Threat, rows: Sequence[Found], names: Sequence[str], caps: Mapping[str, float]) -> Curve:
    """Records may be newer than the distances that were kept."""
    fixed = [
        (caps[name], RECORD) if caps.get(name, math.inf) < row[0] else row
        for name, row in zip(names, rows, strict=True)
    ]
    return Curve(threat, [distance for distance, _ in fixed], [attack for _, attack in fixed])


def _consistent(curves: Mapping[Threat, Curve]) -> dict[Threat, Curve]:
    """Threats of one norm have the same distances: the smaller counts."""
    result = {}
    for threat in curves:
        same = [other for other in curves.values() if other.threat.norm == threat.norm]
        best = [
            min(found) for found in zip(*(zip(one.distances, one.found_by, strict=True) for one in same), strict=True)
        ]
        result[threat] = Curve(threat, [distance for distance, _ in best], [attack for _, attack in best])
    return result
