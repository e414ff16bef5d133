"""The dial: mixtures of the models of finished runs, chosen after training by what they are worth on validation."""

import base64
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from generalist.core.errors import RunError, UserError, shown, unknown
from generalist.core.files import fingerprint, user_path, write_atomically
from generalist.core.threat import Threat, parse_fraction
from generalist.data import sequential_batches
from generalist.distributed import ranks
from generalist.evaluation import Barrier, Flag, MixturePoint, Suite, SuiteResult, Wish, examine_model, load_suite
from generalist.evaluation.front_records import packed
from generalist.evaluation.glance import as_pixels
from generalist.evaluation.tradeoff import barriers, choose, marked
from generalist.mixing import MergeWeights, completed, lattice
from generalist.report.console import Reporter, Silent, make_reporter
from generalist.runs.claims import check_free
from generalist.runs.dial_endpoints import check_architecture, check_trajectory, load_endpoints, shared_data
from generalist.runs.dial_export import export_point
from generalist.runs.dial_points import Bench
from generalist.runs.dial_search import ModuleSearch
from generalist.runs.folder import Run
from generalist.training.precision import pick_device

By = Literal["learner", "module"]
Runs = Run | str | Path | Sequence[Run | str | Path]
FLAG_IMAGES = 128


def dial(
    runs: Runs,
    *,
    between: str | Sequence[str] = (),
    beyond: float | str | Fraction = 1,
    points: int = 21,
    by: By = "learner",
    images: int | None = 1000,
    attack: str | Suite = "pgd20",
    threats: str | Threat | Sequence[str | Threat] = (),
    batchnorm: str | Sequence[str] = (),
    beside: Runs = (),
    seed: int = 0,
    root: str | Path | None = None,
    download: bool = False,
    progress: bool = False,
    reporter: Reporter | None = None,
) -> "Dial":
    """Mix the models of finished runs in many ways, without training, and find the front of what they are worth.

    A mixture is θ = Σ w_e·θ_e over the endpoints e, with Σ w_e = 1. The first endpoint is the base; points lie evenly
    in {base + Σ a_e·(e − base): a_e ≥ 0, Σ a_e ≤ beyond}. BatchNorm statistics of a mixture are measured afresh, on
    training images as the mixed learners saw them, in proportion to their weights. Every point is kept in the (first)
    run's folder as soon as it is known, so that an interrupted dial goes on where it stopped.

    Args:
        runs: A finished run or its folder, or several that share a start or of which one started from another.
        between: Which models to mix, the base first; all learners, the ℓ∞ learner first, if none are named. Models of
            several runs are called `folder:model`.
        beyond: How far to go from the base, in distances to an endpoint: 1 is the simplex, 1.5 half as far again.
        points: How many mixtures are evaluated at the most, endpoints included.
        by: `"learner"`: one weight per endpoint for the whole network. `"module"`: half of the points that way, then a
            search that changes the weights of one module at a time.
        images: Only the first so many images of the validation split; all if None.
        attack: `pgd20`, `quick`, or any other suite; robust is what survives all of it.
        threats: Norm and radius in pixel units, such as `"linf:8/255"`, or several; those of the (first) run's
            validation if none are given.
        batchnorm: Other inputs to measure BatchNorm statistics of all mixtures on: `clean`, and threats by their norm.
        beside: Other runs with the same data, to be compared with: their global models on the same images, in table and
            figure. They are not mixed.
        seed: Of everything random in the attacks, and of the search.
        root: The folder that has the data.
        download: Fetch missing data from its official source.
        progress: Show progress, with the time left, on standard error.
        reporter: Where progress goes instead.

    Returns:
        The dial: `front`, `pick(…)`, `model(weights)`, `export(folder)`; `print(dial)` is a table.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 2, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-generalist-d-natural", out=tmp / "d", overrides=small)
        >>> found = generalist.dial(run, points=3, images=10)
        >>> [dict(point.weights) for point in found.points]
        [{'linf': 1.0, 'natural': 0.0}, {'linf': 0.0, 'natural': 1.0}, {'linf': 0.5, 'natural': 0.5}]
    """
    found = _runs(runs)
    far = _checked_beyond(beyond)
    if by not in get_args(By):
        raise unknown("way to dial", by, get_args(By))
    if images is not None and images < 1:
        raise UserError(f"images must be at least 1, got {images}")
    suite = load_suite(attack)
    endpoints = load_endpoints(found, _listed(between))
    if points < len(endpoints):
        raise UserError(f"points must be at least the number of endpoints, {len(endpoints)}, got {points}")
    check_architecture(endpoints)
    recipe = found[0].recipe
    under = dial_threats(found[0], threats)
    if not under:
        raise UserError(f"{found[0].folder}: its recipe has no validation.threats; give threats, such as linf:8/255")
    others = _runs(beside) if not isinstance(beside, Sequence) or beside else []
    dataset = shared_data([*found, *others], root=None if root is None else user_path(root), download=download)
    check_trajectory(found, dataset)
    if not len(dataset.validation):
        raise UserError(f"{found[0].folder}: its data has no validation split to choose a point by")
    bench = Bench(
        paths=found[0],
        endpoints=endpoints,
        recipe=recipe,
        dataset=dataset,
        images=min(len(dataset.validation), images or len(dataset.validation)),
        suite=suite,
        threats=under,
        seed=seed,
        device=pick_device(recipe.training.device),
        inputs=_listed(batchnorm),
    )
    if by == "module" and len(bench.groups) < 2:
        raise UserError(f"{recipe.model.name} has one module only, {next(iter(bench.groups))}; dial by learner")
    reporter = reporter or make_reporter(quiet=not progress)
    reporter = reporter if ranks.is_main() else Silent()
    made = list(_points(bench, far, points, by, reporter))
    compared = [bench.of_other(_short_name(run, [*found, *others]), run.model()) for run in others]
    done = Dial(bench, made, runs=found, by=by, beyond=far, beside=compared)
    done.keep()
    return done


def dial_threats(run: Run, given: str | Threat | Sequence[str | Threat]) -> tuple[Threat, ...]:
    """The threats given, each once; those of the run's validation if none are."""
    listed = [given] if isinstance(given, str | Threat) else given
    return tuple(dict.fromkeys(map(Threat.parse, listed))) or tuple(run.recipe.validation.threats)


def _short_name(run: Run, runs: Sequence[Run]) -> str:
    """The name of the folder, or the whole path where several have the same name."""
    name = run.folder.resolve().name
    return name if [other.folder.resolve().name for other in runs].count(name) == 1 else str(run.folder)


def _runs(given: Runs) -> list[Run]:
    several = [given] if isinstance(given, Run | str | Path) else list(given)
    if not several:
        raise UserError("nothing to dial: give a run folder")
    runs = [one if isinstance(one, Run) else Run(user_path(one)) for one in several]
    places = [run.folder.resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{run.folder} is given twice")
    return runs


def _listed(given: str | Sequence[str]) -> list[str]:
    """Names, or a text with commas between them."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)


def _checked_beyond(given: float | str | Fraction) -> Fraction:
    far = parse_fraction(given)
    if not 1 <= far <= 100:
        raise UserError(f"beyond is 1 (the simplex) or more, up to 100, got {shown(given)}")
    return far


def _points(bench: Bench, beyond: Fraction, points: int, by: By, reporter: Reporter) -> Iterator[MixturePoint]:
    """Mixtures that treat all modules alike; by module, half as many of them and then a search."""
    names = [one.name for one in bench.endpoints]
    alike = points if by == "learner" else max(len(names), points // 2)
    mixtures = [MergeWeights(weights) for weights in lattice(names, points=alike, beyond=beyond)]
    total = len(mixtures) if by == "learner" else points
    known = bench.known(mixtures)
    done = sum(point is not None for point in known)
    if done:
        reporter.say(f"{done} of {total} points are known already")

    def advance(share: float) -> None:
        reporter.advance(min(total, done + share), total)

    with reporter.bar(f"dial {bench.paths.folder.resolve().name}", done, total):
        fresh = bench.evaluate([m for m, point in zip(mixtures, known, strict=True) if point is None], advance)
        made = []
        for point in known:
            if point is None:
                point = next(fresh)
                done += 1
                advance(0.0)
            made.append(point)
        yield from made
        if by == "learner":
            return
        search = ModuleSearch(
            made, bench.movable, beyond=beyond, steps=points - len(made), seed=bench.seed
        )  # fmt: skip
        for mixture in search.proposals():
            before = bench.known([mixture])[0]
            point = next(bench.evaluate([mixture], advance)) if before is None else before
            search.observe(point)
            done += 1
            advance(0.0)
            yield point


class Dial:
    """Evaluated mixtures of models, and the way from there to one model. `generalist.dial` makes it.

    `points` are all mixtures in the order of their evaluation, `front` those that no other dominates, by natural
    accuracy. A point has `weights`, `modules`, `natural`, `robust` per threat, `mean` (over the threats), `union`,
    `on_front`, `is_endpoint` and `verdicts` per image. `beside` are other runs, each as a point. `barriers` are
    mixtures of two endpoints that lie well below the straight line between them. `print(dial)` is a table.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 2, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-generalist-d-natural", out=tmp / "d", overrides=small)
        >>> found = generalist.dial(run, points=3, images=10)
        >>> found.pick(maximise="natural").natural == max(point.natural for point in found.points)
        True
        >>> found.model({"natural": 0.25}).spec.classes  # the base, linf, takes the rest
        10
    """

    def __init__(
        self,
        bench: Bench,
        points: Sequence[MixturePoint],
        *,
        runs: Sequence[Run],
        by: By,
        beyond: Fraction,
        beside: Sequence[MixturePoint] = (),
    ) -> None:
        self._bench, self.runs, self.by, self.beyond, self.beside = bench, list(runs), by, beyond, list(beside)
        self.modules = list(bench.groups)
        self.points = marked(points, self.modules)
        self.barriers: list[Barrier] = barriers(self.points, bench.remeasured)

    @property
    def endpoints(self) -> list[str]:
        """The names of the models that are mixed, the base first."""
        return [one.name for one in self._bench.endpoints]

    @property
    def threats(self) -> list[str]:
        return [str(threat) for threat in self._bench.threats]

    @property
    def images(self) -> int:
        """How many images of the validation split decide."""
        return self._bench.images

    @property
    def front(self) -> list[MixturePoint]:
        """The points that no other dominates, from least to most natural accuracy; of equals only the simplest."""
        return sorted(
            (point for point in self.points if point.on_front), key=lambda point: (point.natural, -point.mean)
        )

    def pick(
        self,
        *,
        natural_at_least: float | None = None,
        linf_at_least: float | None = None,
        l2_at_least: float | None = None,
        l1_at_least: float | None = None,
        maximise: str = "mean",
    ) -> MixturePoint:
        """The best point that meets the minima; never one that an endpoint dominates on the validation split.

        Args:
            natural_at_least: The least natural accuracy, in percent.
            linf_at_least: The least robust accuracy under the first ℓ∞ threat, in percent.
            l2_at_least: The same for ℓ2.
            l1_at_least: The same for ℓ1.
            maximise: What is to be as large as it can: `natural`, `linf`, `l2`, `l1`, `mean` (of the robust accuracies
                over the threats) or `union` (images right under every threat).

        Returns:
            The point; `is_endpoint` says whether no mixture is better than a model that a run keeps already.

        Raises:
            UserError: No point meets the minima; the message has the nearest.
        """
        minima = {"natural": natural_at_least, "linf": linf_at_least, "l2": l2_at_least, "l1": l1_at_least}
        return self.choose(Wish({name: least for name, least in minima.items() if least is not None}, maximise))

    def choose(self, wish: Wish) -> MixturePoint:
        """`pick`, with the wish as one value."""
        return choose(self.points, wish, self.modules)

    def model(
        self,
        weights: MixturePoint | Mapping[str, float],
        *,
        modules: Mapping[str, Mapping[str, float]] | None = None,
    ) -> nn.Module:
        """A mixture as a model in eval mode, its BatchNorm statistics measured.

        Args:
            weights: A point, or the weight of each endpoint: those not named have 0, and the base takes the rest unless
                it is named. They sum to 1; they may be negative or above 1.
            modules: Weights of their own for some modules, written alike.

        Returns:
            A module of its own: images [N, C, H, W] in [0, 1] → logits [N, K].
        """
        if isinstance(weights, MixturePoint):
            return self._bench.model(weights.mixture)
        each = completed(weights, self.endpoints)
        own = {name: completed(row, self.endpoints) for name, row in (modules or {}).items()}
        return self._bench.model(MergeWeights(each, own))

    def red_flags(self, point: MixturePoint) -> list[Flag]:
        """Signs that a point's robust accuracy is not what it seems, from a few images of the validation split."""
        bench, model = self._bench, self.model(point)
        some = min(FLAG_IMAGES, bench.images)
        split = bench.dataset.validation
        batch = next(sequential_batches(split, batch_size=some, device=bench.device, limit=some))
        return examine_model(model, batch.x, batch.y, threat=bench.threats[0], seed=bench.seed)

    def export(
        self, folder: str | Path, point: MixturePoint | None = None, *, reporter: Reporter | None = None
    ) -> tuple[Run, SuiteResult]:
        """Write a point as a run of its own and attack it on the test split, once, by the suite of the dial.

        Args:
            folder: The new run folder. It must be empty or not be there; if anything goes wrong it is not made.
            point: What `pick` returned; `pick()` if none is given.
            reporter: Where progress of the attack goes.

        Returns:
            The run, which `load`, `evaluate` and `compare` take like any other, and what the attack found.
        """
        path = user_path(folder)
        check_free(path)
        point = point if point is not None else self.pick()
        return export_point(self._bench, point, path, runs=self.runs, reporter=reporter or Silent())

    @property
    def title(self) -> str:
        """What the figures are."""
        bench, names = self._bench, self.endpoints
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        per = " per module" if self.by == "module" else ""
        return (
            f"{bench.recipe.name}: front of {len(self.points)} mixtures{per} of {listed},"
            f" {bench.images} images of the validation split"
        )

    def text(self, chosen: MixturePoint | None = None) -> str:
        """The front as a table of accuracies in percent, with the barriers below; `chosen` is marked."""
        from generalist.report.front import front_text  # matplotlib is slow to import

        stages = "+".join(stage.label for stage in self._bench.suite.stages)
        table = front_text(self.points, title=f"{self.title}, accuracy in %", attack=stages, chosen=chosen)
        others = [f"beside: {next(iter(point.weights))}: {point.figures()}" for point in self.beside]
        return "\n".join([table, *others, *map(str, self.barriers)])

    def __str__(self) -> str:
        return self.text()

    def csv(self) -> str:
        """All points, one row each."""
        from generalist.report.front import front_csv  # matplotlib is slow to import

        return front_csv(self.points)

    def draw(self, chosen: MixturePoint | None = None) -> list[Path]:
        """The front and the way between the endpoints, as PNG and SVG among the figures of the (first) run.

        The main rank draws.
        """
        from generalist.report.front import draw_front  # matplotlib is slow to import
        from generalist.report.ways import draw_ways

        def write() -> list[Path]:
            title = f"{self.title}, {self._bench.suite.name}".replace(": ", "\n", 1)
            run, between = self.runs[0], f"{self._bench.recipe.name}: on the way between the learners, validation split"
            front = draw_front(self.points, title=title, chosen=chosen, beside=self.beside)
            ways = draw_ways(self.points, title=between)
            files = {run.dial_figure(suffix): content for suffix, content in front.items()}
            files |= {run.ways_figure(suffix): content for suffix, content in ways.items()}
            for path, content in files.items():
                write_atomically(path, content)
            return list(files)

        return ranks.run_on_main(write) or []

    def keep(self, **more: Any) -> None:
        """Write the record, with examples and `more`, into the (first) run's folder, for `generalist report`.

        The point that was chosen before stays so, if it is one of these and no other is given.
        """
        split = self._bench.dataset.validation
        rows = [example.row for example in self.points[0].glance.examples]
        examples = {
            "shape": list(split.shape),
            "images": [base64.b64encode(image).decode() for image in as_pixels(split.read(torch.tensor(rows)))],
            "of_points": [point.glance.record()["examples"] for point in self.points],
        }

        def write() -> None:
            about = {**self._chosen_before(), **more}
            try:
                self.runs[0].write_dial({**self.record(), "examples": examples, "judged": self._judged(), **about})
            except RunError as error:
                warnings.warn(f"the dial's record is not kept: {error}", stacklevel=2)

        ranks.run_on_main(write)

    def _chosen_before(self) -> dict[str, Any]:
        try:
            chosen = (self.runs[0].dial_record or {}).get("chosen")
        except UserError:  # damaged: it is written anew
            chosen = None
        same = chosen and any(json.loads(json.dumps(point.record())).items() <= chosen.items() for point in self.points)
        return {"chosen": chosen} if same else {}

    def _judged(self) -> dict[str, Any]:
        """The verdicts of all points, for `generalist front`, with digests of the images and of the attacks."""
        bench = self._bench
        stages = {stage.label: stage.spec() for stage in bench.suite.stages}

        def bits(point: MixturePoint) -> dict[str, str]:
            return {measure: packed(verdicts) for measure, verdicts in point.verdicts.items()}

        return {
            "data": bench.recipe.data.name,
            "images_sha256": fingerprint([bench.dataset.validation.digest(), bench.images]),
            "attacks_sha256": fingerprint([stages, bench.seed]),
            "points": [bits(point) for point in self.points],
            "beside": {next(iter(point.weights)): bits(point) for point in self.beside},
        }

    def record(self) -> dict[str, Any]:
        """Everything but the verdicts, in JSON types."""
        bench = self._bench
        labels, classes = bench.dataset.validation.labels[: bench.images], bench.dataset.classes
        return {
            "runs": [str(run.folder) for run in self.runs],
            "recipe": bench.recipe.name,
            "endpoints": {one.name: one.record() for one in bench.endpoints},
            "base": self.endpoints[0],
            "by": self.by,
            "modules": self.modules,
            "beyond": str(self.beyond),
            "split": "validation",
            "images": bench.images,
            "attack": bench.suite.name,
            "threats": self.threats,
            "seed": bench.seed,
            "seconds": round(bench.seconds, 1),
            "batchnorm": bench.recalibration.record() if bench.recalibration else None,
            "classes": list(classes),
            "points": [{**p.record(), "by_class": p.by_class(labels, len(classes))} for p in self.points],
            "beside": {next(iter(point.weights)): point.record() for point in self.beside},
            "barriers": [barrier.record() for barrier in self.barriers],
        }
