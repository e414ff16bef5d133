"""A model under a suite of attacks: a verdict for every image, attack and threat, and the record of it all."""

import io
import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from generalist.attacks import ATTACKS, BLACK_BOX, counted_passes, stage_streams
from generalist.attacks.view import judged, pad_rows
from generalist.core.errors import RunError, UserError
from generalist.core.files import write_atomically
from generalist.core.names import MEAN, UNION
from generalist.core.threat import Threat
from generalist.core.user_code import is_users, raised
from generalist.data import Split, sequential_batches
from generalist.distributed import ranks
from generalist.evaluation.accuracy import interval, percent
from generalist.evaluation.identity import model_hash, verdict_key
from generalist.evaluation.probe import IMAGES as PROBE_IMAGES
from generalist.evaluation.probe import probe
from generalist.evaluation.red_flags import Flag, black_box, examine_model, large_eps, nan_logits, no_gradient
from generalist.evaluation.standing import Board, Pace, Progress
from generalist.evaluation.suite import Stage, Suite
from generalist.evaluation.verdicts import LARGEST, Verdicts, example_ids
from generalist.version import __version__

_Part = tuple[Tensor, Tensor, dict[str, float], Tensor | None]

FLAG_IMAGES = 128
SAMPLE, SAMPLE_SECONDS = 4, 5.0  # of kept verdicts, of each kind, that are checked before all are believed
BALL_TOLERANCE = 1e-4  # of eps: float32 rounding of a projection


@dataclass(frozen=True)
class SuiteResult:
    """What an evaluation found: a verdict per image, attack and threat. `print(result)` is a table.

    `natural` [N] says which images are right without an attack. `verdicts[threat][stage]` is [N]: 1 survived, 0 broken,
    −1 not attacked (wrong already, or broken before). `largest` is the norm of the largest perturbation that any attack
    returned. `wall_seconds` and `cpu_seconds` (of all ranks) are those of this evaluation: known verdicts cost nothing.
    `record()` is all of it as JSON.

    Example:
        >>> import generalist
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> result = generalist.evaluate(model, "digits", threats=["linf:1/10", "l2:1/2"], images=20)
        >>> list(result.table())
        ['linf:1/10', 'l2:1/2', 'mean over norms', 'true union']
    """

    suite: Suite
    natural: Tensor
    verdicts: Mapping[Threat, Mapping[str, Tensor]]
    costs: Mapping[Threat, Mapping[str, Mapping[str, float]]]
    examples: Sequence[str]
    labels: Tensor
    seed: int
    model: str
    flags: Sequence[Flag] = ()
    notes: Sequence[str] = ()
    x_adv: Mapping[Threat, Tensor] = field(default_factory=dict)
    largest: Mapping[Threat, float] = field(default_factory=dict)
    date: str = ""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    undefined: int = 0  # clean images whose logits are NaN
    about: Mapping[str, Any] = field(default_factory=dict)  # which data, which weights, selected by what

    def __str__(self) -> str:
        """The figures as a table of plain text, in percent with 95 % intervals, and the red flags."""
        intervals = self.intervals()
        lines = [["", *self.suite.columns]]
        lines += [["natural", _figure(percent(self.natural), intervals["natural"])]]
        for row, values in self.table().items():
            bounds = intervals["accuracy"].get(row, {})
            lines.append([row, *(_figure(value, bounds.get(column)) for column, value in values.items())])
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(lines[0]))]
        rows = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)) for line in lines]
        flags = [f"red flag: {flag.message}" for flag in self.flags]
        return "\n".join(line.rstrip() for line in [f"{len(self.natural)} images, accuracy in %", *rows, *flags])

    def robust(self, threat: Threat, column: str) -> Tensor:
        """[N]: right unattacked and after every stage of the column."""
        verdicts = self.natural.clone()
        for label in self.suite.columns[column]:
            verdicts &= self.verdicts[threat][label] != 0
        return verdicts

    def union(self, column: str) -> Tensor:
        """[N]: robust under every threat, the true union."""
        verdicts = self.natural.clone()
        for threat in self.verdicts:
            verdicts &= self.robust(threat, column)
        return verdicts

    def table(self) -> dict[str, dict[str, float]]:
        """Percentages by threat and column; over several threats, their mean and the true union of each column."""
        rows = {str(t): {c: percent(self.robust(t, c)) for c in self.suite.columns} for t in self.verdicts}
        if len(rows) > 1:
            mean = {c: round(sum(row[c] for row in rows.values()) / len(rows), 2) for c in self.suite.columns}
            rows |= {MEAN: mean, UNION: {c: percent(self.union(c)) for c in self.suite.columns}}
        return rows

    def after_stages(self) -> dict[str, dict[str, float]]:
        """Percentages by threat and stage: right unattacked and after this stage and all before it."""
        rows: dict[str, dict[str, float]] = {}
        for threat, verdicts in self.verdicts.items():
            left, row = self.natural.clone(), rows.setdefault(str(threat), {})
            for label, verdict in verdicts.items():
                left &= verdict != 0
                row[label] = percent(left)
        return rows

    def intervals(self) -> dict[str, Any]:
        """95 % intervals of the figures that are shares of the images, which a mean over norms is not."""
        rows = {str(t): {c: interval(self.robust(t, c)) for c in self.suite.columns} for t in self.verdicts}
        if len(rows) > 1:
            rows[UNION] = {c: interval(self.union(c)) for c in self.suite.columns}
        return {"natural": interval(self.natural), "accuracy": rows}

    def record(self) -> dict[str, Any]:
        """Everything that another evaluator needs to check a number, image by image."""
        return {
            "suite": self.suite.name,
            "cascade": self.suite.cascade,
            "stages": {stage.label: stage.spec() for stage in self.suite.stages},
            "columns": {name: list(labels) for name, labels in self.suite.columns.items()},
            "seed": self.seed,
            "date": self.date,
            "threats": {str(t): {"norm": t.norm, "eps": str(t.eps), "eps_float": t.radius} for t in self.verdicts},
            "model_sha256": self.model,
            "versions": {"generalist": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "images": len(self.natural),
            "natural": percent(self.natural),
            "accuracy": self.table(),
            "interval_95": self.intervals(),
            "after_stages": self.after_stages(),
            "largest_perturbation": {str(threat): self.largest.get(threat) for threat in self.verdicts},
            "wall_seconds": round(self.wall_seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "costs": {str(threat): dict(costs) for threat, costs in self.costs.items()},
            "red_flags": [flag.record() for flag in self.flags],
            "notes": list(self.notes),
            "examples": list(self.examples),
            "labels": self.labels.tolist(),
            "per_image": {
                "natural": self.natural.int().tolist(),
                **{str(t): {label: v.tolist() for label, v in row.items()} for t, row in self.verdicts.items()},
            },
            **self.about,
        }


def _figure(value: float, interval_95: Sequence[float] | None) -> str:
    """88.30 [84.57, 91.22]"""
    return f"{value:.2f}" + (f" [{interval_95[0]:.2f}, {interval_95[1]:.2f}]" if interval_95 else "")


def evaluate_suite(
    model: nn.Module,
    split: Split,
    suite: Suite,
    *,
    threats: Sequence[Threat],
    seed: int = 0,
    batch_size: int = 250,
    limit: int | None = None,
    workers: int = 0,
    cache: Path | None = None,
    keep_images: bool = False,
    progress: Progress | None = None,
) -> SuiteResult:
    """The suite's verdicts and the red flags. Verdicts found in `cache` are not computed again.

    The model is probed first: one that cannot be attacked is refused, one that has to be adapted is, and says so.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    if not isinstance(model, nn.Module):
        raise UserError(f"a {type(model).__name__} cannot be evaluated; give a torch.nn.Module that returns logits")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    some = min(FLAG_IMAGES, limit or FLAG_IMAGES)
    batch = next(sequential_batches(split, batch_size=some, device=device, workers=workers, limit=some))
    seeing = any(stage.attack not in BLACK_BOX for stage in suite.stages)
    probed = probe(model, pad_rows(batch.x[:PROBE_IMAGES]), split.labels[:limit], gradients=seeing)
    model = probed.model
    pixels = batch.x[0].numel()
    early = [*probed.flags, *(flag for threat in threats if (flag := large_eps(threat, pixels=pixels)) is not None)]
    for message in [*probed.notes, *(flag.message for flag in early)] if ranks.is_main() else ():
        warnings.warn(message, stacklevel=2)  # at once: the attacks may take hours
    key = verdict_key(model, split.shape) if cache is not None else ""
    attacked = attack_suite(
        model, split, suite, threats=threats, batch_size=batch_size, limit=limit, workers=workers,
        verdicts=Verdicts(cache, model=key, seed=seed), keep_images=keep_images, progress=progress,
    )  # fmt: skip
    flags = examine_model(model, batch.x, batch.y, threat=threats[0], seed=seed, differentiable=probed.differentiable)
    flags += [] if probed.differentiable else [no_gradient()]
    flags += [nan_logits(attacked.undefined, "clean")] if attacked.undefined else []
    for threat in threats:
        found = _nan_logits(attacked, threat), _black_box(attacked, threat)
        flags += [flag for flag in found if flag is not None]
    return replace(
        attacked,
        flags=(*early, *flags),
        notes=probed.notes,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_seconds=time.perf_counter() - wall,
        cpu_seconds=sum(ranks.all_gather(time.process_time() - cpu)),
    )


def _nan_logits(attacked: SuiteResult, threat: Threat) -> Flag | None:
    """Costs are of all images ever attacked, and without a cascade several stages break the same ones."""
    counts = [int(cost.get("nan", 0)) for cost in attacked.costs[threat].values()]
    wrong = torch.stack([verdicts == 0 for verdicts in attacked.verdicts[threat].values()]).any(0)
    found = min(int(wrong.sum()), sum(counts) if attacked.suite.cascade else max(counts))
    return nan_logits(found, f"attacked ({threat})") if found else None


def _black_box(attacked: SuiteResult, threat: Threat) -> Flag | None:
    verdicts = attacked.verdicts[threat]
    blind = [stage.label for stage in attacked.suite.stages if stage.attack in BLACK_BOX]
    seeing = [stage.label for stage in attacked.suite.stages if stage.attack not in BLACK_BOX]
    if not blind or not seeing:
        return None
    survives = torch.stack([verdicts[label] != 0 for label in seeing]).all(0)
    broken = torch.stack([verdicts[label] == 0 for label in blind]).any(0)
    return black_box(attacked.natural, survives, broken)


def attack_suite(
    model: nn.Module,
    split: Split,
    suite: Suite,
    *,
    threats: Sequence[Threat],
    batch_size: int = 250,
    limit: int | None = None,
    workers: int = 0,
    verdicts: Verdicts,
    keep_images: bool = False,
    progress: Progress | None = None,
) -> SuiteResult:
    """Run every stage on the images it is owed; verdicts that are known already are not computed again.

    With `keep_images` the attacked images come back too, so nothing is taken from earlier verdicts.
    """
    if not threats:
        raise UserError("an evaluation needs at least one threat, such as linf:8/255")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    natural, undefined, examples, images, labels = _natural(model, split, batch_size, limit, workers, device)
    store = Verdicts(None, model=verdicts.model, seed=verdicts.seed) if keep_images else verdicts
    board = Board(suite, threats, natural, int(labels.max()) + 1, progress if ranks.is_main() else None)
    work = _Work(model, images, labels, examples, store, batch_size, keep_images, board, device)
    result: dict[Threat, dict[str, Tensor]] = {threat: {} for threat in threats}
    costs: dict[Threat, dict[str, Mapping[str, float]]] = {threat: {} for threat in threats}
    largest: dict[Threat, float] = dict.fromkeys(threats, 0.0)
    x_adv = {threat: images.clone() for threat in threats} if keep_images else {}
    for threat in threats:
        alive = natural.clone()
        for stage in suite.stages:
            started = time.perf_counter()
            done = work.run(stage, threat, owed=alive if suite.cascade else natural)
            for rows, attacked in done.attacked:
                fresh = alive[rows]  # what broke an image first is what is kept of it
                x_adv[threat][rows[fresh]] = attacked[fresh]
            result[threat][stage.label] = done.verdicts
            costs[threat][stage.label] = {key: round(value, 3) for key, value in done.cost.items()}
            largest[threat] = max(largest[threat], done.largest)
            alive &= done.verdicts != 0
            robust = alive if suite.cascade else natural & (done.verdicts != 0)
            board.end(stage, threat, robust, seconds=time.perf_counter() - started)
    return SuiteResult(
        suite, natural, result, costs, examples, labels, verdicts.seed, model_hash(model), x_adv=x_adv, largest=largest,
        undefined=undefined,
    )  # fmt: skip


@dataclass
class _Done:
    """A stage's verdicts on all images, what it cost, the largest perturbation, and the attacked images with their
    rows, where they are kept."""

    verdicts: Tensor
    cost: dict[str, float]
    largest: float
    attacked: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """What every stage of a suite works on."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    examples: Sequence[str]
    store: Verdicts
    batch_size: int
    keep_images: bool
    board: Board
    device: torch.device

    def run(self, stage: Stage, threat: Threat, *, owed: Tensor) -> _Done:
        """The stage's verdicts on the images it owes one; those that nobody knows yet are shared among the ranks."""
        known, cost = self.store.read(threat, stage)
        found = torch.full((len(owed),), -1, dtype=torch.int8)
        for index in owed.nonzero()[:, 0].tolist():
            found[index] = int(known.get(self.examples[index], -1))
        if not self._confirmed(stage, threat, found, seconds_each=cost["seconds"] / max(1, len(known))):
            found.fill_(-1)
            cost = dict.fromkeys(cost, 0.0)
        unknown = (owed & (found == -1)).nonzero()[:, 0]
        mine = unknown[ranks.rank() :: ranks.world()]
        total = len(mine) if ranks.world() > 1 else int(owed.sum())
        pace = self.board.begin(stage, threat, total=total, done=total - len(mine))
        parts = [self._attack(stage, threat, rows, pace) for rows in mine.split(self.batch_size) if len(rows)]
        everyone = [part for theirs in ranks.all_gather(parts) for part in theirs]
        for rows, robust, _, _ in everyone:
            found[rows] = robust
        largest = max(cost.pop(LARGEST), *(spent[LARGEST] for _, _, spent, _ in everyone), 0.0)
        cost = {key: value + sum(spent[key] for _, _, spent, _ in everyone) for key, value in cost.items()}
        return _Done(found, cost, largest, [(rows, images) for rows, _, _, images in everyone if images is not None])

    def _confirmed(self, stage: Stage, threat: Threat, found: Tensor, *, seconds_each: float) -> bool:
        """Attack a sample of the images whose verdicts were kept: if any comes out differently, none is believed."""
        sample = _spread(found, most=max(1, min(SAMPLE, int(SAMPLE_SECONDS / max(seconds_each, 1e-9)))))
        mine, wrong = sample[ranks.rank() :: ranks.world()], False
        if len(mine):
            x, y = self.images[mine].to(self.device), self.labels[mine].to(self.device)
            _, robust, *_ = _attack(self.model, x, y, stage, threat, self.store.seed)
            wrong = bool((robust.cpu() != found[mine].bool()).any())
        if not any(ranks.all_gather(wrong)):
            return True
        if ranks.is_main():
            self.store.forget(threat, stage)
            what = f"{threat} {stage.label}"
            warnings.warn(f"{what}: kept verdicts are not those of this model; all are computed again", stacklevel=2)
        ranks.barrier()
        return False

    def _attack(self, stage: Stage, threat: Threat, rows: Tensor, pace: Pace) -> _Part:
        """One batch: its rows, verdicts, cost and attacked images; the verdicts are kept at once."""
        x, y = self.images[rows].to(self.device), self.labels[rows].to(self.device)
        started = time.perf_counter()
        with counted_passes() as passes, pace.batch(len(rows), passes):
            attacked, robust, largest, undefined = _attack(self.model, x, y, stage, threat, self.store.seed)
        spent = {
            "seconds": time.perf_counter() - started,
            "forward": passes.forward,
            "backward": passes.backward,
            "nan": undefined,
            LARGEST: largest,
        }
        verdicts = robust.cpu().to(torch.int8)
        names = [self.examples[row] for row in rows.tolist()]
        self.store.write(threat, stage, dict(zip(names, robust.tolist(), strict=True)), spent)
        return rows, verdicts, spent, attacked.cpu() if self.keep_images else None


def _spread(found: Tensor, *, most: int) -> Tensor:
    """Indices of up to `most` broken and `most` surviving images, spread over all of each kind."""
    kinds = [(found == verdict).nonzero()[:, 0] for verdict in (0, 1)]
    return torch.cat([kind[:: max(1, len(kind) // most)][:most] for kind in kinds])


def _natural(
    model: nn.Module, split: Split, batch_size: int, limit: int | None, workers: int, device: torch.device
) -> tuple[Tensor, int, list[str], Tensor, Tensor]:
    right, undefined, names, images, labels = [], 0, list[str](), [], []
    for x, y, *_ in sequential_batches(split, batch_size=batch_size, device=device, workers=workers, limit=limit):
        wrong, nan = judged(model, x, y)
        right.append(~wrong.cpu())
        undefined += int(nan.sum())
        names += example_ids(x, y)
        images.append(x.cpu())
        labels.append(y.cpu())
    return torch.cat(right), undefined, names, torch.cat(images), torch.cat(labels)


def _attack(
    model: nn.Module, x: Tensor, y: Tensor, stage: Stage, threat: Threat, seed: int
) -> tuple[Tensor, Tensor, float, int]:
    """The attacked images, which of them survive, the largest perturbation, and how many images have NaN logits.

    All is recomputed on what came back, which must lie in ball and box.
    """
    streams = stage_streams(seed, stage.label, threat, x)
    attack = ATTACKS.get(stage.attack)
    try:
        attacked = attack(model, x, y, threat=threat, generator=streams, **stage.options)
    except (UserError, RunError, MemoryError):
        raise
    except Exception as error:
        if is_users(attack):
            raise raised("attack", stage.attack, error) from error
        raise
    if not isinstance(attacked, Tensor) or attacked.shape != x.shape:
        what = f"{list(attacked.shape)}" if isinstance(attacked, Tensor) else f"a {type(attacked).__name__}"
        raise UserError(f"attack {stage.attack!r} returned {what}; it must return images {list(x.shape)}")
    largest = threat.size(attacked - x).max().item()
    far = largest > threat.radius * (1 + BALL_TOLERANCE)
    if far or attacked.min() < 0 or attacked.max() > 1 or not torch.isfinite(attacked).all():
        raise RunError(f"attack {stage.label} left the ball {threat} or the box; its verdicts would be worthless")
    wrong, undefined = judged(model, attacked, y)
    return attacked, ~wrong, largest, int(undefined.sum())


def save_attacked(path: Path, results: Mapping[str, SuiteResult]) -> None:
    """The attacked images of one model as .npz: threats, labels, and for each threat i x_adv_i and robust_i.

    An image's x_adv is what broke it, or the last attack's try where nothing did.
    """
    if len(results) != 1:
        raise UserError(f"--save-adv takes one model, got {len(results)}; give one target, and --global for a run")
    (result,) = results.values()
    arrays: dict[str, Any] = {"threats": np.array([str(threat) for threat in result.x_adv]), "y": result.labels.numpy()}
    arrays["natural"] = result.natural.numpy()
    for index, (threat, x_adv) in enumerate(result.x_adv.items()):
        survived = torch.stack([verdicts != 0 for verdicts in result.verdicts[threat].values()]).all(0)
        arrays |= {f"x_adv_{index}": x_adv.numpy(), f"robust_{index}": (result.natural & survived).numpy()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())
