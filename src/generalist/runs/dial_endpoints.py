"""What a dial mixes: models that runs keep, of one architecture and one trajectory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from generalist.core.errors import UserError, unknown
from generalist.core.threat import Threat
from generalist.data import Dataset
from generalist.distributed import ranks
from generalist.evaluation import model_hash
from generalist.models import Classifier
from generalist.recipes.schema import LearnerSection, Recipe
from generalist.runs.experiment import build_network, load_data
from generalist.runs.folder import Run
from generalist.runs.paths import GLOBAL


@dataclass(frozen=True, eq=False)
class Endpoint:
    """A model that a run keeps, on the CPU. `hash` is of its architecture and tensors.

    `task` is that of the learner whose model it is; None where several made it.
    """

    name: str
    run: Run
    model_name: str
    model: nn.Module
    hash: str
    task: LearnerSection | None = None

    def record(self) -> dict[str, str]:
        return {"run": str(self.run.folder), "model": self.model_name, "model_sha256": self.hash}


@dataclass(frozen=True)
class _Candidate:
    """A model that could be an endpoint; `offered` are those that are taken where none are named."""

    run: Run
    model_name: str
    task: LearnerSection | None
    offered: bool


def load_endpoints(runs: Sequence[Run], between: Sequence[str]) -> list[Endpoint]:
    """The models to mix, the base first.

    Args:
        runs: Finished runs. Of one, models are called by their names; of several, `folder:name`.
        between: Which models; all learners of each run (of a run with one learner, its average) if none are named.
            Then one that is called linf, or trained on ℓ∞, is the base.
    """
    for run in runs:
        _ = run.summary  # a run that is not finished is refused: its models may still change
    known = _candidates(runs)
    for name in between:
        if name not in known:
            raise unknown("endpoint", name, known)
        if list(between).count(name) > 1:
            raise UserError(f"{name} is given twice in between")
    names = list(between) or _base_first({name: one for name, one in known.items() if one.offered})
    if len(names) < 2:
        listed = ", ".join(known)
        raise UserError(
            f"a dial needs two endpoints or more, got {', '.join(names) or 'none'};"
            f" give another run too, or name models to mix: {listed or 'these runs have none'}"
        )
    return [_endpoint(name, known[name]) for name in names]


def _candidates(runs: Sequence[Run]) -> dict[str, _Candidate]:
    folders = [run.folder.resolve().name for run in runs]
    found: dict[str, _Candidate] = {}
    for run, folder in zip(runs, folders, strict=True):
        title = folder if folders.count(folder) == 1 else str(run.folder)
        learners, models = run.recipe.learners, run.models
        alone = next(iter(learners.values())) if len(learners) == 1 else None
        one_model = alone is not None or models == [GLOBAL]  # an exported point is a run with nothing but that
        for model in models:
            task = alone if model == GLOBAL else learners.get(model)
            name = model if len(runs) == 1 else f"{title}:{model}"
            found[name] = _Candidate(run, model, task, offered=(model == GLOBAL) == one_model)
    return found


def _base_first(offered: Mapping[str, _Candidate]) -> list[str]:
    """In their order, but for the ℓ∞ model: one of that name, or else one of that task."""
    called = [name for name, one in offered.items() if one.model_name == "linf"]
    tasked = [name for name, one in offered.items() if one.task is not None and _is_linf(one.task)]
    base = [*called, *tasked][:1]
    return [*base, *(name for name in offered if name not in base)]


def _is_linf(task: LearnerSection) -> bool:
    threat = task.objective.options.get("threat")
    return isinstance(threat, Threat) and threat.norm == "linf"


def _endpoint(name: str, one: _Candidate) -> Endpoint:
    model = one.run.model(one.model_name)
    return Endpoint(name, one.run, one.model_name, model, model_hash(model), one.task)


def check_architecture(endpoints: Sequence[Endpoint]) -> None:
    """Refuse models of different networks or classes."""
    base = endpoints[0]
    for other in endpoints[1:]:
        ours, theirs = ({**_plain_spec(one.model), "classes by name": _classes(one.model)} for one in (base, other))
        for field, value in ours.items():
            if theirs[field] != value and field in ("mean", "std"):
                raise UserError(
                    f"{base.name} and {other.name} normalise images differently ({field} {value} and {theirs[field]}):"
                    f" they were trained on other images or splits"
                )
            if theirs[field] != value:
                raise UserError(
                    f"{base.name} and {other.name} are different networks: {field} is {value} and {theirs[field]};"
                    f" only models of one architecture can be mixed"
                )


def _plain_spec(model: nn.Module) -> dict[str, object]:
    return model.spec.to_json() if isinstance(model, Classifier) else {}


def _classes(model: nn.Module) -> object:
    return model.trained_on.get("classes") if isinstance(model, Classifier) else None


def shared_data(runs: Sequence[Run], *, root: Path | None, download: bool) -> Dataset:
    """The data of the runs, which must be the same images in the same splits.

    Where another run was trained on images of this one's validation split, nothing could be chosen by it.
    """
    first, *others = runs
    dataset = load_data(first.recipe, root=root, download=download)
    ours = _data_fields(first.recipe)
    for other in others:
        if _data_fields(other.recipe) == ours:
            continue
        theirs = load_data(other.recipe, root=root, download=download)
        if theirs.training_digest() != dataset.training_digest():
            raise UserError(
                f"{first.folder} and {other.folder} were trained on other images or splits; give runs with the same"
                f" data, data.validation, data.limit and seed"
            )
    return dataset


def _data_fields(recipe: Recipe) -> tuple[object, ...]:
    data = recipe.data
    return data.name, data.root, data.size, data.channels, data.validation, data.limit, recipe.seed


def check_trajectory(runs: Sequence[Run], dataset: Dataset) -> None:
    """Refuse runs that share nothing: neither their first weights, nor a model of one that another started from."""
    if len(runs) == 1:
        return
    ranks.run_on_main(lambda: _check_trajectory(runs, dataset))


def _check_trajectory(runs: Sequence[Run], dataset: Dataset) -> None:
    starts = [model_hash(build_network(run.recipe, dataset).eval()) for run in runs]
    kept = [{model_hash(run.model(name)) for name in run.models} for run in runs]
    joined, left = [0], list(range(1, len(runs)))
    while near := [i for i in left if any(_share_a_state(i, j, starts, kept) for j in joined)]:
        joined += near
        left = [i for i in left if i not in near]
    if left:
        raise UserError(
            f"{runs[0].folder} and {runs[left[0]].folder} share no start: neither began from a model of the other, nor"
            f" both from the same weights; start one from the other (init.from), or train both with one seed"
        )


def _share_a_state(i: int, j: int, starts: Sequence[str], kept: Sequence[set[str]]) -> bool:
    return starts[i] == starts[j] or starts[i] in kept[j] or starts[j] in kept[i]
