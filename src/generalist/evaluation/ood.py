"""Accuracy out of distribution: under corruptions at five severities, and along perturbation sequences.

The figures are those of CIFAR-10-C and CIFAR-10-P (Hendrycks and Dietterich, ICLR 2019): accuracy at severity 5 and the
mean over all severities, of the fifteen common corruptions; accuracy over the frames of the ten common sequences, and
the share of the steps at which the prediction flips. The images are drawn for any dataset, or the official ones.
"""

import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.attacks.view import pad_rows, steady_forward
from generalist.core.errors import UserError
from generalist.core.files import fingerprint
from generalist.core.names import OOD
from generalist.core.types import Batch
from generalist.data import Split, sequential_batches
from generalist.data.corruptions import COMMON, LEVELS, SMALLEST, corrupt, corruption_names
from generalist.data.corruptions.official import Official
from generalist.data.corruptions.sequences import COMMON_SEQUENCES, LENGTHS, NOISY, perturbed
from generalist.distributed import ranks
from generalist.evaluation.accuracy import percent
from generalist.evaluation.identity import model_hash, verdict_key
from generalist.evaluation.probe import IMAGES as PROBE_IMAGES
from generalist.evaluation.probe import probe
from generalist.evaluation.records import AGAIN, read_sealed
from generalist.evaluation.red_flags import Flag
from generalist.evaluation.verdicts import ImageRows, example_ids
from generalist.version import __version__

VERSION = 1
"""Raised whenever a corruption or a sequence changes: older verdicts are then not used."""
DRAWN, OFFICIAL = "drawn", "official"

Progress = Callable[[float, int, float], None]
"""(images done, images in all, share of all the work done)"""


@dataclass(frozen=True)
class Along:
    """Of every image [N]: in how many frames of a sequence it is right, and at how many steps its prediction flips."""

    frames: int
    right: Sequence[int]
    flips: Sequence[int]

    @property
    def accuracy(self) -> float:
        return round(100 * fmean(self.right) / self.frames, 2)

    @property
    def flip_rate(self) -> float:
        """In percent of the steps."""
        return round(100 * fmean(self.flips) / (self.frames - 1), 2)

    def record(self) -> dict[str, Any]:
        return {"frames": self.frames, "accuracy": self.accuracy, "flip_rate": self.flip_rate}


@dataclass(frozen=True)
class OodResult:
    """Verdicts under corruptions, bool [5, N] each, and along sequences. `print(result)` is a table.

    `record()` is all of it as JSON.
    """

    natural: Tensor
    corruptions: Mapping[str, Tensor]
    sequences: Mapping[str, Along]
    examples: Sequence[str]
    seed: int
    model: str
    sources: Mapping[str, str]
    flags: Sequence[Flag] = ()
    notes: Sequence[str] = ()
    date: str = ""
    wall_seconds: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        found = self.figures()
        lines = [["", *(f"severity {level}" for level in LEVELS)]]
        rows = {**found["corruptions"], **found["extra_corruptions"]}
        lines += [[name, *(f"{value:.2f}" for value in row)] for name, row in rows.items()]
        lines += [["", "accuracy", "flip rate"]]
        lines += [[name, f"{one.accuracy:.2f}", f"{one.flip_rate:.2f}"] for name, one in self.sequences.items()]
        wide = max(len(line[0]) for line in lines)
        text = ["  ".join([f"{line[0]:<{wide}}", *(f"{cell:>10}" for cell in line[1:])]) for line in lines]
        flags = [f"red flag: {flag.message}" for flag in self.flags]
        head = f"{len(self.natural)} images, accuracy in %: {', '.join(summary(found))}"
        return "\n".join(line.rstrip() for line in [head, *text, *flags])

    def figures(self) -> dict[str, Any]:
        """Percentages: of each corruption by severity, of each sequence, and the means, in which the extra are not."""
        rows = {name: [percent(row) for row in rows] for name, rows in self.corruptions.items()}
        along = {name: one.record() for name, one in self.sequences.items()}
        corruptions = {name: row for name, row in rows.items() if name in COMMON}
        sequences = {name: row for name, row in along.items() if name in COMMON_SEQUENCES}
        return {
            "natural": percent(self.natural),
            "severity5": _mean(row[-1] for row in corruptions.values()),
            "mean": _mean(value for row in corruptions.values() for value in row),
            "sequences_accuracy": _mean(row["accuracy"] for row in sequences.values()),
            "flip_rate": _mean(row["flip_rate"] for row in sequences.values()),
            "corruptions": corruptions,
            "extra_corruptions": {name: row for name, row in rows.items() if name not in COMMON},
            "sequences": sequences,
            "extra_sequences": {name: row for name, row in along.items() if name not in COMMON_SEQUENCES},
        }

    def record(self) -> dict[str, Any]:
        """Everything that another evaluator needs to check the figures; verdicts as strings of 0 and 1."""
        return {
            "suite": OOD,
            "images": len(self.natural),
            "seed": self.seed,
            "date": self.date,
            **self.figures(),
            "sources": dict(self.sources),
            "model_sha256": self.model,
            "versions": {"generalist": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "wall_seconds": round(self.wall_seconds, 3),
            "red_flags": [flag.record() for flag in self.flags],
            "notes": list(self.notes),
            "examples": list(self.examples),
            "per_image": {
                "natural": _bits(self.natural),
                "corruptions": {name: [_bits(row) for row in rows] for name, rows in self.corruptions.items()},
                "sequences": {
                    name: {"frames": one.frames, "right": list(one.right), "flips": list(one.flips)}
                    for name, one in self.sequences.items()
                },
            },
            **self.about,
        }


def summary(figures: Mapping[str, Any]) -> list[str]:
    """The figures of a result or of its record that sum it up, a few words each."""
    return [
        f"natural {figures['natural']:.2f}",
        f"severity 5 {figures['severity5']:.2f}",
        f"all severities {figures['mean']:.2f}",
        f"sequences {figures['sequences_accuracy']:.2f} (flip rate {figures['flip_rate']:.2f} %)",
    ]


def _mean(values: Iterable[float]) -> float:
    return round(fmean(values), 2)


def _bits(verdicts: Tensor) -> str:
    return "".join("01"[int(verdict)] for verdict in verdicts.tolist())


def _verdicts(bits: str) -> Tensor:
    return torch.tensor([("0", "1").index(bit) == 1 for bit in bits])


def read_ood(path: Path) -> dict[str, Any]:
    """A record as `generalist eval --suite ood` wrote it. Its figures are recomputed from its verdicts."""
    record = read_sealed(path)
    try:
        rows = record["per_image"]
        corruptions = {name: torch.stack([*map(_verdicts, five)]) for name, five in rows["corruptions"].items()}
        sequences = {name: Along(one["frames"], one["right"], one["flips"]) for name, one in rows["sequences"].items()}
        result = OodResult(_verdicts(rows["natural"]), corruptions, sequences, record["examples"], 0, "", {})
        counts = {len(result.natural), len(result.examples), *(rows.shape[1] for rows in corruptions.values())}
        counts |= {len(row) for one in sequences.values() for row in (one.right, one.flips)}
        agrees = counts == {record["images"]} and all(record[key] == value for key, value in result.figures().items())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        raise UserError(f"{path} is not the record of suite {OOD}; {AGAIN}") from None
    if not agrees:
        raise UserError(f"{path} has figures that are not those of its verdicts; {AGAIN}")
    return record


def evaluate_ood(
    model: nn.Module,
    split: Split,
    *,
    official: Official | None = None,
    seed: int = 0,
    batch_size: int = 250,
    limit: int | None = None,
    workers: int = 0,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> OodResult:
    """Every image under every corruption and along every sequence; verdicts found in `cache` are not computed again.

    What is not among the official files is drawn, a dataset as a whole: corruptions, or sequences. Ranks share the
    images.
    """
    began = time.perf_counter()
    if min(split.shape[1:]) < SMALLEST:
        height, width = split.shape[1:]
        raise UserError(f"images are {height}×{width}; corruptions need at least {SMALLEST}×{SMALLEST} pixels")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    first = next(sequential_batches(split, batch_size=PROBE_IMAGES, device=device, limit=limit)).x
    probed = probe(model, pad_rows(first), split.labels[:limit], gradients=False)
    work = _Work(probed.model, official or Official(), split.shape[0], seed)
    notes = [*probed.notes, *work.official.notes]
    for message in [*notes, *(flag.message for flag in probed.flags)] if ranks.is_main() else ():
        warnings.warn(message, stacklevel=2)
    key = verdict_key(work.model, split.shape) if cache is not None else ""
    kept = {part: ImageRows(cache, f"{OOD}-{part[1]}", work.key(key, part)) for part in work.parts}
    known = {part: rows.read() for part, rows in kept.items()}
    total = min(len(split), limit or len(split))
    shared = min(ranks.world(), -(-total // batch_size))
    mine: dict[int, Any] = {}
    done = 0
    batches = sequential_batches(
        split, batch_size=batch_size, device=device, workers=workers, limit=limit,
        share=slice(ranks.rank(), None, ranks.world()),
    )  # fmt: skip
    for number, batch in zip(count(ranks.rank(), ranks.world()), batches, strict=False):
        names = example_ids(batch.x, batch.y)
        found: dict[tuple[str, str], list[Any]] = {}
        passed = 0
        for part in work.parts:
            labels = work.labels(names, batch, part)
            fresh = torch.tensor([label not in known[part] for label in labels], device=device)
            if fresh.any():
                here = Batch(batch.x[fresh], batch.y[fresh], batch.ids[fresh])
                new = dict(zip([n for n in labels if n not in known[part]], work.rows(part, here), strict=True))
                known[part] |= new
                kept[part].write(new)
            found[part] = [known[part][label] for label in labels]
            passed += work.passes(part)
            if progress is not None:
                at = min(total, (done + len(names) * passed / work.passes()) * shared)
                progress(at, total, at / total)
        right = predicted(work.model, batch.x) == batch.y
        mine[number] = (names, right.cpu().tolist(), found)
        done += len(names)
    everyone = {number: rows for part in ranks.all_gather(mine) for number, rows in part.items()}
    ordered = [everyone[number] for number in sorted(everyone)]
    columns = {part: [row for _, _, found in ordered for row in found[part]] for part in work.parts}
    return OodResult(
        torch.tensor([verdict for _, right, _ in ordered for verdict in right]),
        {name: torch.stack([*map(_verdicts, rows)], dim=1) for (kind, name), rows in columns.items() if kind == "c"},
        {
            name: Along(work.frames(name), [right for right, _ in rows], [flips for _, flips in rows])
            for (kind, name), rows in columns.items() if kind == "p"
        },
        [name for names, _, _ in ordered for name in names], seed, model_hash(work.model),
        {"corruptions": work.source("c"), "sequences": work.source("p")}, probed.flags, notes,
        datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - began,
    )  # fmt: skip


@torch.no_grad()
def predicted(model: nn.Module, x: Tensor) -> Tensor:
    """The classes [B] that the model itself says, in eval mode and full precision; −1 where logits are NaN."""
    with frozen(model), torch.autocast(x.device.type, enabled=False):
        logits = steady_forward(model, x)
    return torch.where(logits.isnan().any(1), -1, logits.argmax(1))


@dataclass(frozen=True)
class _Work:
    """All that an image goes through, in parts: ("c", a corruption at its severities) and ("p", a sequence)."""

    model: nn.Module
    official: Official
    channels: int
    seed: int

    @property
    def parts(self) -> list[tuple[str, str]]:
        corruptions = list(self.official.corruptions) or corruption_names(self.channels)
        sequences = list(self.official.sequences) or list(LENGTHS)
        return [*(("c", name) for name in corruptions), *(("p", name) for name in sequences)]

    def source(self, kind: str) -> str:
        return OFFICIAL if (self.official.corruptions if kind == "c" else self.official.sequences) else DRAWN

    def key(self, model: str, part: tuple[str, str]) -> str:
        """Official images do not depend on the seed."""
        return fingerprint([VERSION, model, *part, self.seed if self.source(part[0]) == DRAWN else OFFICIAL])

    def labels(self, names: Sequence[str], batch: Batch, part: tuple[str, str]) -> list[str]:
        """What verdicts are kept under: official images that were made of equal ones differ."""
        if self.source(part[0]) == DRAWN:
            return list(names)
        return [f"{place}-{name}" for place, name in zip(batch.ids.tolist(), names, strict=True)]

    def frames(self, name: str) -> int:
        return LENGTHS[name]

    def passes(self, part: tuple[str, str] | None = None) -> int:
        """Of an image through the model, in one part or in all."""
        if part is None:
            return sum(map(self.passes, self.parts))
        return len(LEVELS) if part[0] == "c" else self.frames(part[1])

    def rows(self, part: tuple[str, str], batch: Batch) -> list[Any]:
        """Of each image: a 0 or 1 per severity; or in how many frames it is right, and how often it flips."""
        kind, name = part
        said = torch.stack([predicted(self.model, x.to(batch.x)) for x in self._versions(kind, name, batch)])
        right = said == batch.y
        if kind == "c":
            return [_bits(column) for column in right.T]
        before = said[:1] if name in NOISY else said[:-1]
        return list(zip(right.sum(0).tolist(), (said[1:] != before).sum(0).tolist(), strict=True))

    def _versions(self, kind: str, name: str, batch: Batch) -> Iterator[Tensor]:
        ids = batch.ids.cpu()
        if kind == "c":
            for severity in LEVELS:
                if self.source(kind) == OFFICIAL:
                    yield self.official.corrupted(name, severity, ids)
                else:
                    yield corrupt(batch.x, name, severity, seed=self.seed)
        elif self.source(kind) == OFFICIAL:
            yield from (self.official.frame(name, number, ids) for number in range(self.frames(name)))
        else:
            yield from perturbed(batch.x, name, seed=self.seed)
