"""What each module of a trained network can give: natural accuracy gained for robustness lost, and its criticality."""

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import pgd
from generalist.core.errors import UserError, shown
from generalist.core.files import fingerprint, read_json, seal_holds, sealed, user_path, write_json
from generalist.core.rng import ImageStreams, generator
from generalist.core.schedules import piecewise
from generalist.core.threat import Threat
from generalist.core.types import Batch
from generalist.data import Augment, Dataset, batches, sequential_batches, steps_per_epoch
from generalist.distributed.launch import launched_processes
from generalist.evaluation import evaluate_split, model_hash, percent
from generalist.evaluation.accuracy import Change, paired_change
from generalist.evaluation.criticality import RADIUS, robust_criticality
from generalist.evaluation.criticality import STEPS as ASCENT_STEPS
from generalist.models.modules import blocks, module_names
from generalist.objectives import make_objective
from generalist.recipes.catalogue import Overrides, load_recipe
from generalist.recipes.schema import Recipe, parse_recipe
from generalist.report.console import Reporter, make_reporter
from generalist.report.modules import Kind, ModuleReport, ModuleRow, draw_modules
from generalist.runs.experiment import DIVERGED, build_network, load_data
from generalist.runs.folder import Run, load
from generalist.runs.paths import GLOBAL, ModulePaths, RunPaths
from generalist.runs.workers import Share, Task, Workers
from generalist.training.learner import Learner
from generalist.training.optimizers import sgd
from generalist.training.precision import pick_device, pick_precision
from generalist.version import __version__

SAMPLE, SAMPLE_STEPS = 256, 10
"""Training images, and PGD steps on them, that criticality is measured by."""
LEAST_STEPS = 300
"""Of a fine-tuning whose length is not given: fewer leave the gains below what 1,000 images can tell from luck."""
MOST_TOGETHER = 5
"""Sets of the last modules are checked up to this length: beyond it the backward pass is no longer short."""
WHOLE = "the whole network"
LINEAR = partial(piecewise, at=(Fraction(0), Fraction(1)), values=(1.0, 0.0))


def measure_modules(
    target: Run | Recipe | str | Path | Mapping[str, Any],
    *,
    name: str = GLOBAL,
    out: str | Path | None = None,
    threats: str | Threat | Sequence[str | Threat] = (),
    epochs: float | None = None,
    lr: float = 0.03,
    images: int = 1000,
    price: float | None = None,
    workers: int = 1,
    overrides: Overrides = (),
    method: str | None = None,
    root: str | Path | None = None,
    download: bool = False,
    progress: bool = False,
    reporter: Reporter | None = None,
) -> ModuleReport:
    """Measure how much natural accuracy each module of a network can give for how much robustness.

    Each module is fine-tuned alone by natural training, with everything else frozen: SGD of momentum 0.9 with the
    recipe's batches and augmentation. Natural and PGD accuracy on the validation split before and after tell its
    price. Its robust criticality (RiFT, ICCV 2023) stands beside it. Then sets of the cheapest modules are checked,
    the last modules first, and one is proposed as the `trains` of a natural learner. The test split is not touched.

    Args:
        target: A run or its folder; or a recipe that starts from trained weights (`init.from`): its name, its file, a
            mapping of fields, or a `Recipe`.
        name: Which model of a run: `global`, or the name of a learner.
        out: The folder for the report, its figures and what was measured so far. A run has its own.
        threats: Norm and radius in pixel units, such as `"linf:8/255"`, or several; the recipe's own if not given.
        epochs: Length of each fine-tuning, such as 1 or 0.25; if not given, one epoch and at least 300 steps.
        lr: Learning rate at its start; it falls linearly to 0.
        images: How many images of the validation split are attacked.
        price: The highest price at which modules are proposed, in robust points per natural point. If not given,
            half the price of fine-tuning the whole network, and at least 1.
        workers: How many processes share the modules, with one thread each. No result depends on it. More than one
            needs `if __name__ == "__main__"` in a script.
        overrides: Recipe fields to change, where a recipe's name or file is given.
        method: Which method, for a setting or a file that extends one.
        root: The folder that has the data.
        download: Fetch missing data from its official source.
        progress: Show progress, with the time left, on standard error.
        reporter: Where progress goes instead.

    Returns:
        The report: `rows`, `proposed`, and a table when printed. What was measured is kept in the folder; a second
        call goes on from there.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-at", out=tmp / "at", overrides=small)
        >>> report = generalist.measure_modules(run, images=10, epochs=1)
        >>> [row.name for row in report.rows if row.kind == "module"]
        ['conv1', 'conv2', 'conv3', 'conv4', 'conv5', 'fc']
    """
    if launched_processes() > 1:
        raise UserError("modules are measured by one process and its workers; start it without torchrun")
    count = int(_positive("workers", workers))
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise UserError(f"price must be at least 0, got {price}")
    source = _source(target, name=name, overrides=overrides, method=method, root=root)
    given = [threats] if isinstance(threats, str | Threat) else threats
    settings = _Settings(
        epochs=None if epochs is None else _positive("epochs", epochs),
        lr=_positive("lr", lr),
        images=int(_positive("images", images)),
        threats=tuple(str(Threat.parse(threat)) for threat in given or source.recipe.validation.threats),
    )
    if not settings.threats:
        raise UserError(f"{source.title} has no threats in `validation`; give some, such as linf:8/255")
    paths = _paths(source, out)
    bench = _Bench.open(source, settings, download=download)
    store = _Store(paths, bench.identity())
    reporter = reporter or make_reporter(quiet=not progress)
    make = partial(_open_worker, source.plain(), settings) if count > 1 else lambda: bench.measure
    modules = list(bench.modules)
    with Workers(make, count=count) as pool:
        measured = partial(_measure, store, pool, reporter)
        jobs = [bench.job(), bench.job(*modules), *(bench.job(each, critical=True) for each in modules)]
        before, everything, *alone = measured(jobs, title=f"{source.title}: modules")
        whole = bench.row(modules, "whole", everything, before)
        singles = [bench.row([each], "module", found, before) for each, found in zip(modules, alone, strict=True)]
        rate = _highest_price(whole) if price is None else price
        sets = _candidate_sets(singles, rate)
        checked = measured([bench.job(*names) for names in sets], title=f"{source.title}: sets of modules")
    combined = [bench.row(names, "set", found, before) for names, found in zip(sets, checked, strict=True)]
    report = ModuleReport(
        title=source.title,
        rows=(*singles, *combined, whole),
        before=before.accuracies(),
        rate=rate,
        chosen=_choose([*singles, *combined], rate),
        about=bench.about(),
        files=(paths.report_file(name), *paths.figure_files(name)),
    )
    _write(report)
    return report


@dataclass(frozen=True)
class _Source:
    """Where the network and its data come from; `plain` is the same for another process."""

    title: str
    recipe: Recipe
    folder: Path | None  # of the run; None for the weights that the recipe starts from
    name: str
    root: Path | None

    def plain(self) -> dict[str, Any]:
        return {**self.__dict__, "recipe": self.recipe.plain()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "_Source":
        return cls(**{**plain, "recipe": parse_recipe(plain["recipe"])})


@dataclass(frozen=True)
class _Settings:
    """How every module is measured."""

    epochs: float | None
    lr: float
    images: int
    threats: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    """Which tensors are fine-tuned (none: the network as it is), and whether their criticality is measured too."""

    tensors: tuple[str, ...]
    critical: bool = False


@dataclass(frozen=True)
class _Found:
    """Verdicts of the validation images as text of 0 and 1, and the criticality."""

    natural: str
    robust: dict[str, str]
    criticality: float | None = None

    @property
    def union(self) -> str:
        """Right under every threat."""
        return "".join(map(min, zip(*self.robust.values(), strict=True)))

    def accuracies(self) -> dict[str, Any]:
        robust = {threat: percent(_bits(verdicts)) for threat, verdicts in self.robust.items()}
        return {"natural": percent(_bits(self.natural)), "robust": robust, "true_union": percent(_bits(self.union))}


def _positive(field: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{field} must be above 0, got {shown(value)}")
    return value


def _source(target: Any, *, name: str, overrides: Overrides, method: str | None, root: str | Path | None) -> _Source:
    where = None if root is None else user_path(root).resolve()
    is_folder = isinstance(target, str | Path) and user_path(target).is_dir()
    if isinstance(target, Run) or is_folder:
        if overrides or method:
            raise UserError(f"{target} is a run; overrides and method go with a recipe", command="--set, --method")
        run = target if isinstance(target, Run) else Run(user_path(target))
        return _Source(f"{run.folder.resolve().name}/{name}", run.recipe, run.folder.resolve(), name, where)
    recipe = target if isinstance(target, Recipe) else load_recipe(target, overrides, method=method)
    if name != GLOBAL:
        raise UserError(f"{name!r} is asked for of a recipe; only a run has several models: give its folder")
    if recipe.init is None:
        raise UserError(
            f"{recipe.name} has no trained weights: train it and give its run folder, or set init.from",
            command=f"generalist train {recipe.name}, then generalist modules runs/{recipe.name}",
        )
    return _Source(recipe.name, recipe, None, name, where)


def _paths(source: _Source, out: str | Path | None) -> ModulePaths:
    if out is not None:
        folder = user_path(out)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; give a folder", command="--out FOLDER")
        return ModulePaths(folder)
    if source.folder is None:
        raise UserError(f"{source.title} is a recipe and has no folder; give one", command="--out FOLDER")
    return RunPaths(source.folder).modules


def _open_worker(source: Mapping[str, Any], settings: _Settings) -> Task:
    return _Bench.open(_Source.of(source), settings).measure


class _Bench:
    """A trained network with its data, on which modules are measured, one after another or by many processes."""

    def __init__(self, source: _Source, settings: _Settings, model: nn.Module, dataset: Dataset) -> None:
        self.recipe, self.settings, self.model, self.dataset = source.recipe, settings, model, dataset
        self.device = next(model.parameters()).device
        self.modules = blocks(model)
        self.threats = [Threat.parse(threat) for threat in settings.threats]
        self.per_epoch = steps_per_epoch(dataset.train, batch_size=self.recipe.training.batch_size)
        asked = None if settings.epochs is None else max(1, round(settings.epochs * self.per_epoch))
        self.steps = asked or max(LEAST_STEPS, self.per_epoch)
        if not len(dataset.validation):
            raise UserError(f"{source.title} has no validation split; set data.validation to a share such as 0.1")
        self.images = min(settings.images, len(dataset.validation))

    @classmethod
    def open(cls, source: _Source, settings: _Settings, *, download: bool = False) -> "_Bench":
        folder = source.folder
        model = None if folder is None else load(folder, source.name)
        dataset = load_data(source.recipe, download=download, root=source.root)
        model = model or build_network(source.recipe, dataset)
        return cls(source, settings, model.eval().to(pick_device(source.recipe.training.device)), dataset)

    def about(self) -> dict[str, Any]:
        """How everything is measured; nothing that a result does not depend on."""
        recipe, settings = self.recipe, self.settings
        return {
            "split": "validation",
            "images": self.images,
            "attack": f"PGD{recipe.validation.steps}",
            "threats": list(settings.threats),
            "epochs": round(self.steps / self.per_epoch, 3),
            "steps": self.steps,
            "lr": settings.lr,
            "seed": recipe.seed,
            "batch_size": recipe.training.batch_size,
            "augment": asdict(self._augment),
            **({"balance": recipe.data.balance} if recipe.data.balance else {}),
            "radius": RADIUS,
            "criticality_images": SAMPLE,
        }

    def identity(self) -> dict[str, Any]:
        """What a result depends on besides the tensors that are trained."""
        training = self.recipe.training
        return {
            **self.about(),
            "model": model_hash(self.model),
            "data": self.dataset.training_digest(),
            "precision": str(self._precision),
            "device": self.device.type,
            "clip_norm": training.clip_norm,
            "accumulate": training.accumulate,
            "version": __version__,
        }

    def job(self, *modules: str, critical: bool = False) -> _Job:
        return _Job(tuple(tensor for name in modules for tensor in self.modules[name]), critical)

    def row(self, modules: Sequence[str], kind: Kind, found: _Found, before: _Found) -> ModuleRow:
        """What became of the network when these modules were fine-tuned."""
        tensors = self.job(*modules).tensors
        trains = tuple(module_names(self.model, tensors))
        sizes = {name: parameter.numel() for name, parameter in self.model.named_parameters()}
        return ModuleRow(
            name=modules[0] if kind == "module" else WHOLE if kind == "whole" else ", ".join(trains),
            modules=tuple(modules),
            trains=trains,
            kind=kind,
            parameters=sum(sizes.get(name, 0) for name in tensors),
            natural=_change(found.natural, before.natural),
            robust={threat: _change(found.robust[threat], before.robust[threat]) for threat in found.robust},
            union=_change(found.union, before.union),
            criticality=found.criticality,
            last=list(self.modules)[-len(modules) :] == list(modules),
        )

    def measure(self, job: _Job, share: Share) -> _Found:
        """Fine-tune, attack the validation images, and measure the criticality; the same in any process."""
        # in passes through the network: what the time left is told by
        tuning = 3 * self.steps * self.recipe.training.batch_size if job.tensors else 0
        attacking = self.images * (1 + 2 * len(self.threats) * self.recipe.validation.steps)
        critical = 3 * SAMPLE * len(self.threats) * ASCENT_STEPS if job.critical else 0
        total = tuning + attacking + critical
        model = self._tuned(job.tensors, lambda done: share(tuning * done / total)) if job.tensors else self.model
        found = evaluate_split(
            model,
            self.dataset.validation,
            threats=self.threats,
            steps=self.recipe.validation.steps,
            limit=self.images,
            batch_size=self.recipe.validation.batch_size,
            seed=self.recipe.seed,
            workers=self.recipe.data.workers,
            progress=lambda done, images: share((tuning + attacking * done / images) / total),
        )
        criticality = self._criticality(job.tensors) if job.critical else None
        robust = {str(threat): _text(verdicts) for threat, verdicts in found.robust.items()}
        return _Found(_text(found.natural), robust, criticality)

    def _tuned(self, tensors: Sequence[str], share: Share) -> nn.Module:
        """A copy of the network after natural training of these tensors alone."""
        training = self.recipe.training
        learner = Learner(
            "natural",
            copy.deepcopy(self.model),
            make_objective("natural", {}),
            partial(sgd, lr=self.settings.lr, momentum=0.9),
            lr=self.settings.lr,
            schedule=LINEAR,
            clip_norm=training.clip_norm,
            accumulate=training.accumulate,
            precision=self._precision,
            loss_limit=DIVERGED * math.log(max(2, len(self.dataset.classes))),
            trained=tensors,
        )
        for step, batch in enumerate(islice(self._batches(), self.steps)):
            learner.step(batch, progress=Fraction(step, self.steps), key=(self.recipe.seed, "modules", step))
            share((step + 1) / self.steps)
        return learner.model.eval()

    def _batches(self) -> Iterator[Batch]:
        """Those of the epochs that would follow the recipe's own."""
        for epoch in range(math.ceil(self.steps / self.per_epoch)):
            yield from batches(
                self.dataset.train,
                batch_size=self.recipe.training.batch_size,
                seed=self.recipe.seed,
                epoch=self.recipe.training.epochs + epoch,
                augment=self._augment,
                device=self.device,
                workers=self.recipe.data.workers,
                balance=self.recipe.data.balance,
            )

    def _criticality(self, tensors: Sequence[str]) -> float:
        x_adv, y = self._adversarial_sample
        return robust_criticality(self.model, tensors, x_adv, y, batch_size=self.recipe.validation.batch_size)

    @cached_property
    def _adversarial_sample(self) -> tuple[Tensor, Tensor]:
        """Fixed training images, attacked under every threat, with their labels."""
        train, seed = self.dataset.train, self.recipe.seed
        ids = torch.randperm(len(train), generator=generator(seed, "criticality"))[:SAMPLE]
        (batch,) = sequential_batches(train.take(ids), batch_size=SAMPLE, device=self.device)
        attacked = [
            pgd(
                self.model, batch.x, batch.y, threat=threat, steps=SAMPLE_STEPS,
                generator=ImageStreams(seed, "criticality", str(threat), ids=batch.ids),
            )
            for threat in self.threats
        ]  # fmt: skip
        return torch.cat(attacked), batch.y.repeat(len(attacked))

    @property
    def _augment(self) -> Augment:
        data = self.recipe.data
        return Augment(crop=data.crop, flip=data.flip, cutout=data.cutout)

    @property
    def _precision(self) -> torch.dtype:
        return pick_precision(self.recipe.training.precision, self.device)


class _Store:
    """What was measured so far: a sealed file for each job, named by all that its result depends on."""

    def __init__(self, paths: ModulePaths, identity: Mapping[str, Any]) -> None:
        self._paths, self._identity = paths, identity

    def _key(self, job: _Job) -> str:
        return fingerprint({**self._identity, "tensors": list(job.tensors), "critical": job.critical})

    def read(self, job: _Job) -> _Found | None:
        key = self._key(job)
        path = self._paths.measured_file(key)
        if not path.is_file():
            return None
        try:
            kept = read_json(path)
        except UserError as error:
            warnings.warn(f"{error}; it is measured again", stacklevel=2)
            return None
        if not seal_holds(kept) or kept["key"] != key:
            warnings.warn(f"{path} was changed since it was written; it is measured again", stacklevel=2)
            return None
        return _Found(kept["natural"], kept["robust"], kept["criticality"])

    def write(self, job: _Job, found: _Found) -> None:
        key = self._key(job)
        write_json(self._paths.measured_file(key), sealed({"key": key, "tensors": list(job.tensors), **asdict(found)}))


def _measure(store: _Store, workers: Workers, reporter: Reporter, jobs: Sequence[_Job], *, title: str) -> list[_Found]:
    """The results of all jobs, in their order; those that are kept are not measured again."""
    results = {number: found for number, job in enumerate(jobs) if (found := store.read(job)) is not None}
    missing = [number for number in range(len(jobs)) if number not in results]
    kept = len(results)
    with reporter.bar(title, kept, len(jobs)):
        done = workers.results(
            [jobs[number] for number in missing], advance=lambda count: reporter.advance(kept + count, len(jobs))
        )
        for place, found in done:
            store.write(jobs[missing[place]], found)
            results[missing[place]] = found
    return [results[number] for number in range(len(jobs))]


def _highest_price(whole: ModuleRow) -> float:
    """Half of what the whole network asks for a natural point, and at least one for one."""
    return max(1.0, (whole.price or 0.0) / 2)


def _candidate_sets(modules: Sequence[ModuleRow], rate: float) -> list[list[str]]:
    """The sets worth checking: the last modules, as far as none is surely too dear; and all that are cheap, if others.

    The former are of at most `MOST_TOGETHER` modules.
    """
    fit = 0
    while fit < len(modules) and not _too_dear(modules[-1 - fit], rate):
        fit += 1
    lengths = range(2, min(fit, MOST_TOGETHER, len(modules) - 1) + 1)
    sets = [[row.name for row in modules[-length:]] for length in lengths]
    cheap = [row.name for row in modules if row.price is not None and row.price <= rate]
    if 1 < len(cheap) < len(modules) and cheap not in sets:
        sets.append(cheap)
    return sets


def _too_dear(row: ModuleRow, rate: float) -> bool:
    worth = row.worth(rate)
    return worth.points + worth.margin < 0


def _choose(rows: Sequence[ModuleRow], rate: float) -> ModuleRow | None:
    """What is worth most at this rate. Others than the last modules have to be better than chance can explain."""
    found = [row for row in rows if row.worth(rate).points > 0]
    last = max((row for row in found if row.last), key=lambda row: row.worth(rate).points, default=None)
    other = max((row for row in found if not row.last), key=lambda row: row.worth(rate).points, default=None)
    if last is None or other is None:
        return last or other
    lead = other.worth(rate).points - last.worth(rate).points
    return other if lead > other.worth(rate).margin else last


def _write(report: ModuleReport) -> None:
    record, *figures = report.files
    write_json(record, sealed(report.record()))
    draw_modules(report, figures)


def _bits(text: str) -> Tensor:
    return torch.tensor([float(letter) for letter in text])


def _text(verdicts: Tensor) -> str:
    return "".join("01"[verdict] for verdict in verdicts.int().tolist())


def _change(after: str, before: str) -> Change:
    return paired_change(_bits(after), _bits(before))
