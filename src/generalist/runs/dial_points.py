"""MixturePoints of a dial: mixtures made, BatchNorm measured, attacked, and kept by what decides their verdicts."""

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from generalist.core.errors import RunError, UserError
from generalist.core.files import fingerprint, read_json, remove_leftovers, seal_holds, sealed, write_json
from generalist.core.threat import Threat
from generalist.core.types import StateTree
from generalist.data import Dataset
from generalist.distributed import ranks
from generalist.evaluation import MixturePoint, Suite, Verdicts, evaluate_split, verdict_key
from generalist.evaluation.attacked import attack_suite
from generalist.evaluation.glance import Glance, glance
from generalist.evaluation.tradeoff import NATURAL
from generalist.mixing import MergeWeights, has_batchnorm, merge, module_groups, statistics
from generalist.recipes.schema import Recipe
from generalist.runs.dial_batchnorm import Recalibration, Shares
from generalist.runs.dial_endpoints import Endpoint
from generalist.runs.paths import RunPaths

METHOD_VERSION = 3
"""Raised whenever a point is made or measured in another way: older points are then not used."""
Progress = Callable[[float], None]
"""(the share of a point that is done)"""


@dataclass
class Bench:
    """Everything that makes a point of a mixture. All ranks have the same one and call its methods together.

    Attributes:
        paths: the run whose folder keeps the points.
        endpoints: the models that are mixed, the base first.
        recipe: of that run: batches, workers, device.
        dataset: whose validation split decides, and on whose train split BatchNorm is measured.
        images: how many images of the validation split.
        suite: the attacks.
        threats: under which each is made.
        seed: of the attacks.
        device: where models run.
        inputs: what BatchNorm is measured on; what each endpoint's learner saw, if empty.
        seconds: that the points took, those of earlier calls included.
    """

    paths: RunPaths
    endpoints: Sequence[Endpoint]
    recipe: Recipe
    dataset: Dataset
    images: int
    suite: Suite
    threats: Sequence[Threat]
    seed: int
    device: torch.device
    inputs: Sequence[str] = ()
    seconds: float = 0.0
    _writable: bool = True
    _trees: dict[str, StateTree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        base = self.endpoints[0].model
        self._trees = {one.name: one.model.state_dict() for one in self.endpoints}
        self.groups = module_groups(base)
        measured_on = Recalibration.of(self.recipe, self.endpoints, self.threats, self.inputs)
        self.recalibration = measured_on if has_batchnorm(base) else None
        self._model = copy.deepcopy(base).eval().to(self.device)
        split = self.dataset.validation
        self._facts: dict[str, Any] = {
            "version": METHOD_VERSION,
            "validation": split.digest(),
            "images": self.images,
            "attack": [self.suite.name, {stage.label: stage.spec() for stage in self.suite.stages}],
            "threats": [str(threat) for threat in self.threats],
            "seed": self.seed,
        }
        self._models = {one.name: verdict_key(one.model, split.shape) for one in self.endpoints}
        if self.recalibration is not None:
            data = self.recipe.data
            measured = [self.recalibration.record(), data.crop, data.flip, data.cutout, self.dataset.train.digest()]
            self._recalibrated = fingerprint(measured)
        ranks.run_on_main(lambda: remove_leftovers(self.paths.dial_folder))

    @property
    def measures(self) -> list[str]:
        return [NATURAL, *map(str, self.threats)]

    @property
    def movable(self) -> dict[str, list[str]]:
        """The modules, each with the endpoints whose parameters differ from the base's in it."""
        base, *others = self._trees
        learned = {name for name, _ in self.endpoints[0].model.named_parameters()}
        return {
            module: [other for other in others if self._differ(base, other, learned & set(names))]
            for module, names in self.groups.items()
        }

    def _differ(self, base: str, other: str, names: Iterable[str]) -> bool:
        return any(not torch.equal(self._trees[base][name], self._trees[other][name]) for name in names)

    def _key(self, mixture: MergeWeights) -> str:
        """Of everything that decides a point's verdicts."""
        whole = mixture.endpoint
        parts: Any = self._models[whole] if whole else self._parts(mixture)
        measured = self._recalibrated if whole is None and self.recalibration is not None else None
        return fingerprint({**self._facts, "model": parts, "recalibrated": measured})

    def _parts(self, mixture: MergeWeights) -> Any:
        """The endpoints that take part, the base (whose integers are copied), and the weights of each module."""
        modules = list(self.groups) if mixture.modules else [""]
        by_model = {
            module: [[self._models[name], mixture.of(module)[name]] for name in mixture.involved] for module in modules
        }
        return [self._models[self.endpoints[0].name], by_model]

    def known(self, mixtures: Sequence[MergeWeights]) -> list[MixturePoint | None]:
        """The points that were evaluated before; a damaged file is named and counts as none."""
        rows = [self._read(self._key(mixture)) for mixture in mixtures] if ranks.is_main() else []
        found: list[dict[str, Any] | None] = ranks.all_gather(rows)[0]
        self.seconds += sum(row["seconds"] for row in found if row)
        return [self._point(mixture, row) if row else None for mixture, row in zip(mixtures, found, strict=True)]

    def _read(self, key: str) -> dict[str, Any] | None:
        path = self.paths.dial_file(key)
        if not path.is_file():
            return None
        try:
            row = read_json(path)
            verdicts = row["verdicts"]
            whole = seal_holds(row) and row["of"] == key and list(verdicts) == self.measures
            whole = whole and all(len(text) == self.images and set(text) <= {"0", "1"} for text in verdicts.values())
            whole = whole and isinstance(row["seconds"], int | float)
            whole = whole and list(Glance.of(row["glance"]).losses) == self.measures
        except (UserError, KeyError, TypeError, ValueError, AttributeError):
            whole = False
        if not whole:
            warnings.warn(f"{path} is damaged or of another dial; its point is computed again", stacklevel=2)
        return row if whole else None

    def _point(self, mixture: MergeWeights, row: Mapping[str, Any]) -> MixturePoint:
        bits = {
            name: torch.tensor([bit == "1" for bit in text], dtype=torch.bool) for name, text in row["verdicts"].items()
        }
        return MixturePoint(mixture, bits, Glance.of(row["glance"]))

    def evaluate(self, mixtures: Sequence[MergeWeights], progress: Progress) -> Iterator[MixturePoint]:
        """One point after the other, each kept as soon as it is known.

        Ranks measure the BatchNorm of one mixture each, then share the images of all of them.
        """
        for first in range(0, len(mixtures), ranks.world()):
            group = mixtures[first : first + ranks.world()]
            began = time.perf_counter()
            mine = self._made(group[ranks.rank()]) if ranks.rank() < len(group) else None
            made = time.perf_counter() - began
            for source, mixture in enumerate(group):
                began = time.perf_counter()
                self._load_(mine, source)
                point = MixturePoint(mixture, self._judged(self._model, progress), self._glance(self._model))
                self._keep(self._key(mixture), point, seconds=made / len(group) + time.perf_counter() - began)
                yield point

    def _made(self, mixture: MergeWeights) -> StateTree:
        """The tensors of a mixture. Endpoints keep their own BatchNorm statistics, others get fresh ones."""
        self._model.load_state_dict(merge(self._trees, mixture, groups=self.groups))
        if self.recalibration is not None and mixture.endpoint is None:
            workers = self.recipe.data.workers
            self.recalibration.apply_(
                self._model, self._shares(mixture), self.dataset.train, device=self.device, workers=workers
            )
        return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    def _shares(self, mixture: MergeWeights) -> Shares:
        """How much of each endpoint's inputs the statistics of a mixture are measured on: as much as of its weights.

        A learner that does not train a module keeps the base's statistics there, so there it counts as the base.
        Endpoints with a negative weight count as absent.
        """
        base, *_ = self._trees
        module_of = {tensor: module for module, tensors in self.groups.items() for tensor in tensors}
        shares: dict[str, dict[str, float]] = {}
        for name in statistics(self._model):
            row = mixture.of(module_of.get(name, ""))
            total = sum(max(0.0, weight) for weight in row.values())
            found = shares.setdefault(name, {})
            for endpoint, weight in row.items():
                if weight > 0:
                    home = endpoint if self._differ(base, endpoint, [name]) else base
                    found[home] = found.get(home, 0.0) + weight / total
        return shares

    def _load_(self, mine: StateTree | None, source: int) -> None:
        """The bench's model ← what rank `source` made."""
        if ranks.rank() == source and mine is not None:
            self._model.load_state_dict(mine)
        ranks.broadcast_(list(self._model.state_dict().values()), source=source, purpose="dial")

    def remeasured(self, end: MixturePoint) -> MixturePoint:
        """An endpoint with its BatchNorm statistics measured as those of other mixtures are."""
        if self.recalibration is None:
            return end
        mixture = MergeWeights(end.weights, remeasured=True)
        return self.known([mixture])[0] or next(self.evaluate([mixture], lambda share: None))

    def model(self, mixture: MergeWeights) -> nn.Module:
        """The mixture as a model of its own, in eval mode; the same on all ranks."""
        self._load_(self._made(mixture) if ranks.is_main() else None, 0)
        return copy.deepcopy(self._model).eval()

    def of_other(self, name: str, model: nn.Module) -> MixturePoint:
        """Any other model on the same images, under the same attacks; kept like the points."""
        mixture = MergeWeights({name: 1.0})
        key = fingerprint({
            **self._facts, "model": verdict_key(model, self.dataset.validation.shape), "recalibrated": None,
        })  # fmt: skip
        found: dict[str, Any] | None = ranks.all_gather(self._read(key) if ranks.is_main() else None)[0]
        if found is not None:
            return self._point(mixture, found)
        began = time.perf_counter()
        model = model.eval().to(self.device)
        point = MixturePoint(mixture, self._judged(model, lambda share: None), self._glance(model))
        self._keep(key, point, seconds=time.perf_counter() - began)
        return point

    def _glance(self, model: nn.Module) -> Glance:
        """Losses and a few examples; made by the main rank, known to all."""
        split = self.dataset.validation
        mine = (
            glance(model, split, threats=self.threats, images=self.images, seed=self.seed) if ranks.is_main() else None
        )
        found: Glance = ranks.all_gather(mine)[0]
        return found

    def _judged(self, model: nn.Module, progress: Progress) -> dict[str, Tensor]:
        """Verdicts [N] of a model: natural, and for each threat."""
        validation, workers = self.recipe.validation, self.recipe.data.workers
        split = self.dataset.validation
        if self.suite.name == "pgd20":  # as runs are validated, so that endpoints have the figures of their run
            found = evaluate_split(
                model, split, threats=self.threats, steps=20, batch_size=validation.batch_size, seed=self.seed,
                limit=self.images, workers=workers, progress=lambda done, total: progress(done / total),
            )  # fmt: skip
            return {NATURAL: found.natural, **{str(threat): kept for threat, kept in found.robust.items()}}
        result = attack_suite(
            model, split, self.suite, threats=self.threats, batch_size=validation.batch_size, limit=self.images,
            workers=workers, verdicts=Verdicts(None, model="", seed=self.seed),
            progress=lambda now: progress(now.number / max(1, now.stages)) if now.ended else None,
        )  # fmt: skip
        robust = {}
        for threat, stages in result.verdicts.items():
            survived = torch.stack([verdicts != 0 for verdicts in stages.values()]).all(0)
            robust[str(threat)] = result.natural & survived
        return {NATURAL: result.natural, **robust}

    def _keep(self, key: str, point: MixturePoint, *, seconds: float) -> None:
        self.seconds += seconds
        if not ranks.is_main() or not self._writable:
            return
        verdicts = {name: "".join("1" if bit else "0" for bit in bits) for name, bits in point.verdicts.items()}
        shown = {"weights": dict(point.weights), "modules": {name: dict(row) for name, row in point.modules.items()}}
        row = {"of": key, **shown, "natural": point.natural, "robust": point.robust, "seconds": round(seconds, 3)}
        try:
            write_json(
                self.paths.dial_file(key), sealed({**row, "verdicts": verdicts, "glance": point.glance.record()})
            )
        except RunError as error:
            self._writable = False
            with suppress(OSError):
                self.paths.dial_folder.rmdir()
            warnings.warn(f"points are not kept: {error}", stacklevel=2)
