"""Accuracy against ε: the smallest distance at which each image is known to be misclassified gives the whole curve.

An image's distance is the least that any search finds: FMN and targeted FAB, then APGD-CE and APGD-T on a ladder of
radii, from the distance so far downwards until they fail. An image that is wrong unattacked is at distance 0, one for
which nothing was found at infinity. The accuracy at ε is the share of the images with a distance above ε.
"""

import bisect
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import STANDARD, fab_distance, fmn_distance, misclassified, stage_streams, watched
from generalist.attacks.view import pad_rows
from generalist.core.errors import RunError, UserError
from generalist.core.files import fingerprint, read_json, seal_holds, sealed
from generalist.core.names import CURVE
from generalist.core.threat import Threat, expand_like
from generalist.data import Split, sequential_batches
from generalist.distributed import ranks
from generalist.evaluation.accuracy import percent
from generalist.evaluation.attacked import BALL_TOLERANCE
from generalist.evaluation.identity import model_hash, verdict_key
from generalist.evaluation.probe import IMAGES as PROBE_IMAGES
from generalist.evaluation.probe import probe
from generalist.evaluation.red_flags import Flag, large_eps
from generalist.evaluation.verdicts import append_row, example_ids, read_rows
from generalist.version import __version__

VERSION = 1
"""Raised whenever a search changes what it finds: older distances are then not used."""
REACH = 4
"""The curve ends at this many radii of the threat."""
SHOWN = tuple(Fraction(part, 4) for part in (1, 2, 4, 6, 8))
"""The radii of a table, as multiples of the threat's."""
_NEAREST = {"fmn": partial(fmn_distance, steps=100), "fab": partial(fab_distance, steps=20)}
RUNGS_PER_OCTAVE, LOWEST = 16, 5  # the ladder ends LOWEST octaves below the threat's radius
LINE_STEPS = 6  # of the bisection between a misclassified point and the image
LADDER, RECORD = "apgd", "record"
_SHARES = {"fmn": 0.1, "fab": 0.3, LADDER: 0.6}  # of the time, about
_AGAIN = "remove it and run generalist eval again"

Progress = Callable[[float, int, float], None]
"""(images done, images in all, share of all the work done)"""
Broken = Mapping[str, Sequence[tuple[Fraction, frozenset[str]]]]
"""What other evaluations of the same model found, by norm: a radius, and the names of the images broken at it."""


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

    def accuracy(self, eps: float | Fraction) -> float:
        """In percent, at a radius in pixel units."""
        return percent(torch.tensor([distance > float(eps) for distance in self.distances]))

    def steps(self) -> tuple[list[float], list[float]]:
        """Where the curve falls, and to which accuracy in percent, from 0 to eps_max."""
        reach = float(self.eps_max)
        where = [0.0, *sorted({d for d in self.distances if 0 < d <= reach}), reach]
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
    try:
        record = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {_AGAIN}") from None
    if not seal_holds(record):
        raise UserError(f"{path} was changed since it was written (its digest differs); {_AGAIN}")
    try:
        curves = record_curves(record)
        right = [all(curve.distances[i] > 0 for curve in curves) for i in range(record["images"])]
        agrees = record["natural"] == percent(torch.tensor(right)) and len(record["examples"]) == record["images"]
        for curve, row in zip(curves, record["threats"].values(), strict=True):
            fresh = curve.record()
            agrees &= all(fresh[key] == row[key] for key in ("auc", "eps_max", "median", "accuracy"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, UserError, statistics.StatisticsError):
        raise UserError(f"{path} is not the record of a curve; {_AGAIN}") from None
    if not agrees:
        raise UserError(f"{path} has figures that are not those of its distances; {_AGAIN}")
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
    broken: Broken | None = None,
    progress: Progress | None = None,
) -> CurveResult:
    """The minimal distances of every image under each threat; those found in `cache` are not computed again.

    The radius of a threat says where the ladder of radii lies. Ranks share the images.
    """
    began = time.perf_counter()
    if not threats:
        raise UserError("a curve needs at least one threat, such as linf:8/255")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    batches = list(sequential_batches(split, batch_size=batch_size, device=device, workers=workers, limit=limit))
    first = batches[0].x
    probed = probe(model, pad_rows(first[:PROBE_IMAGES]), split.labels[:limit], gradients=True)
    model = probed.model
    large = (large_eps(threat, pixels=first[0].numel()) for threat in threats)
    flags = [*probed.flags, *(flag for flag in large if flag is not None)]
    for message in [*probed.notes, *(flag.message for flag in flags)] if ranks.is_main() else ():
        warnings.warn(message, stacklevel=2)
    key = verdict_key(model, split.shape) if cache is not None else ""
    names = [example_ids(batch.x, batch.y) for batch in batches]
    natural = torch.cat([~misclassified(model, batch.x, batch.y).cpu() for batch in batches])
    total = len(natural)
    curves: dict[Threat, Curve] = {}
    for number, threat in enumerate(threats):
        store = _Store(cache, fingerprint([VERSION, key, str(threat), seed]))
        caps = _caps((broken or {}).get(threat.norm, ()))
        known = store.read()
        mine: dict[str, tuple[float, str]] = {}
        done = 0
        for index in range(ranks.rank(), len(batches), ranks.world()):
            (x, y, *_), labels = batches[index], names[index]
            fresh = torch.tensor([name not in known for name in labels], device=device)
            if fresh.any():
                here = [name for name in labels if name not in known]

                def tell(share: float, before: int = done, images: int = len(labels)) -> None:
                    at = (before + share * images) * min(ranks.world(), len(batches))
                    if progress is not None and at <= total:
                        progress(at, total, (number + at / total) / len(threats))  # noqa: B023

                found = _distances(model, x[fresh], y[fresh], threat, seed, [caps.get(n, math.inf) for n in here], tell)
                rows = dict(zip(here, found, strict=True))
                store.write(rows)
                mine |= rows
            done += len(labels)
        everyone = {**known, **{name: row for part in ranks.all_gather(mine) for name, row in part.items()}}
        flat = [everyone[name] for part in names for name in part]
        curves[threat] = _capped(threat, flat, [name for part in names for name in part], caps)
    return CurveResult(
        _consistent(curves), natural, [name for part in names for name in part], seed, model_hash(model), tuple(flags),
        probed.notes, datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - began,
    )  # fmt: skip


def _caps(found: Sequence[tuple[Fraction, frozenset[str]]]) -> dict[str, float]:
    """The smallest radius at which another evaluation broke an image, by its name."""
    caps: dict[str, float] = {}
    for eps, names in sorted(found, key=lambda one: one[0], reverse=True):
        caps |= dict.fromkeys(names, float(eps))
    return caps


def _capped(
    threat: Threat, rows: Sequence[tuple[float, str]], names: Sequence[str], caps: Mapping[str, float]
) -> Curve:
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
            min(zip(rows, by, strict=True), key=lambda row: row[0])
            for rows, by in zip(
                zip(*(other.distances for other in same), strict=True),
                zip(*(other.found_by for other in same), strict=True),
                strict=True,
            )
        ]
        result[threat] = Curve(threat, [distance for distance, _ in best], [attack for _, attack in best])
    return result


class _Store:
    """Distances on disk by (model, threat, seed, image), so that an interrupted evaluation goes on where it stopped."""

    def __init__(self, folder: Path | None, key: str) -> None:
        self._folder, self._key, self._writable = folder, key, folder is not None

    def read(self) -> dict[str, tuple[float, str]]:
        found: dict[str, tuple[float, str]] = {}
        paths = [] if self._folder is None else sorted(self._folder.glob(f"{CURVE}-{self._key[:24]}*.jsonl"))
        for path in paths:
            for row in read_rows(path, key=self._key):
                found |= {n: (math.inf if d is None else d, attack) for n, (d, attack) in row["distances"].items()}
        ranks.barrier()  # nobody writes before everybody has read
        return found

    def write(self, rows: Mapping[str, tuple[float, str]]) -> None:
        if self._folder is None or not self._writable:
            return
        plain = {name: [None if math.isinf(d) else d, attack] for name, (d, attack) in rows.items()}
        try:
            part = f"-{ranks.rank()}" if ranks.rank() else ""
            path = self._folder / f"{CURVE}-{self._key[:24]}{part}.jsonl"
            append_row(path, sealed({"of": self._key, "distances": plain}))
        except OSError as error:
            self._writable = False
            reason = error.strerror or error
            warnings.warn(f"distances are not kept, {self._folder} cannot be written to: {reason}", stacklevel=2)


@dataclass
class _Search:
    """The nearest misclassified point of each image so far."""

    model: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat
    distance: Tensor  # float64
    found_by: list[str]

    def offer(self, rows: Tensor, points: Tensor, attack: str, *, radius: float = math.inf) -> Tensor:
        """Keep the points that are misclassified and nearer; which of them are misclassified [len(rows)].

        A point that an attack says to be in a ball is as near as its radius, but for the rounding of the projection.
        """
        wrong = misclassified(self.model, points, self.y[rows])
        size = self.threat.size(points - self.x[rows]).double()
        if (size[wrong] > radius * (1 + BALL_TOLERANCE)).any() or points.min() < 0 or points.max() > 1:
            raise RunError(f"{attack} left the ball or the box; its distances would be worthless")
        size = size.clamp_max(radius)
        nearer = wrong & (size < self.distance[rows])
        self.distance[rows[nearer]] = size[nearer]
        for row in rows[nearer].tolist():
            self.found_by[row] = attack
        return wrong


def _distances(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    seed: int,
    caps: Sequence[float],
    tell: Callable[[float], None],
) -> list[tuple[float, str]]:
    """The distance of each image, and the attack that found it."""
    wrong = misclassified(model, x, y)
    distance = torch.where(wrong, 0.0, torch.full_like(y, math.inf, dtype=torch.float64))
    search = _Search(model, x, y, threat, distance, ["natural" if bad else "" for bad in wrong.tolist()])
    rows = (~wrong).nonzero()[:, 0]
    begin = 0.0
    for name, share in _SHARES.items():
        if not len(rows):
            break
        with watched(lambda part, begin=begin, share=share: tell(begin + share * part if share < 0.5 else begin)):  # type: ignore[misc]
            if name == LADDER:
                for row, cap in enumerate(caps):
                    if cap < distance[row]:
                        distance[row], search.found_by[row] = cap, RECORD
                for settled in _descend(search, rows, seed):
                    tell(begin + share * settled)
            else:
                streams = stage_streams(seed, name, threat, x[rows])
                points, _ = _NEAREST[name](model, x[rows], y[rows], threat=threat, generator=streams)
                search.offer(rows, points, name)
        begin += share
    tell(1.0)
    return list(zip(search.distance.tolist(), search.found_by, strict=True))


def ladder(eps: Fraction) -> list[Fraction]:
    """Radii from eps / 2^LOWEST to REACH · eps, RUNGS_PER_OCTAVE from one to its double, evenly between them."""
    octaves = [eps * Fraction(2) ** power for power in range(-LOWEST, REACH.bit_length())]
    steps = range(RUNGS_PER_OCTAVE)
    inner = [low + (high - low) * Fraction(i, RUNGS_PER_OCTAVE) for low, high in pairwise(octaves) for i in steps]
    return [*inner, octaves[-1]]


def _descend(search: _Search, rows: Tensor, seed: int) -> Iterator[float]:
    """Attack each image at the largest rung below its distance, until that fails; yields the share that is settled.

    Each image fails once, which is what a strong attack at a single radius costs.
    """
    rungs = ladder(search.threat.eps)
    heights = [float(rung) for rung in rungs]
    total, left = len(rows), rows
    while len(left):
        place = [bisect.bisect_left(heights, float(search.distance[row])) - 1 for row in left.tolist()]
        stay = []
        for rung in sorted({at for at in place if at >= 0}, reverse=True):
            group = left[torch.tensor([at == rung for at in place], device=left.device)]
            stay.append(group[_broken(search, group, Threat(search.threat.norm, rungs[rung]), seed)])
        left = torch.cat(stay) if stay else left[:0]
        yield 1 - len(left) / total


def _broken(search: _Search, rows: Tensor, ball: Threat, seed: int) -> Tensor:
    """Which images APGD-CE and APGD-T break in the ball, as in the suite `quick`; their points are pulled back."""
    result = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for label in ("APGD_ce", "APGD_t"):
        here = (~result).nonzero()[:, 0]
        if len(here):
            x, y = search.x[rows[here]], search.y[rows[here]]
            streams = stage_streams(seed, label, ball, x)
            points = STANDARD[label][1](search.model, x, y, threat=ball, generator=streams)
            wrong = search.offer(rows[here], points, LADDER, radius=ball.radius)
            result[here[wrong]] = True
            if wrong.any():
                _pull_back(search, rows[here[wrong]], points[wrong])
    return result


def _pull_back(search: _Search, rows: Tensor, points: Tensor) -> None:
    """Bisect the line from the misclassified points to their images."""
    x = search.x[rows]
    low, high = torch.zeros(len(rows), device=x.device), torch.ones(len(rows), device=x.device)
    for _ in range(LINE_STEPS):
        at = (low + high) / 2
        wrong = search.offer(rows, (x + expand_like(at, x) * (points - x)).clamp(0, 1), LADDER)
        low, high = torch.where(wrong, low, at), torch.where(wrong, at, high)
