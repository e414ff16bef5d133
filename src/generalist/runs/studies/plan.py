"""The trials of a study: which recipe with which seed, judged by what, kept where."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from generalist.core.errors import UserError
from generalist.core.files import fingerprint
from generalist.core.names import OOD
from generalist.evaluation import Suite, load_suite
from generalist.recipes.differences import decisive
from generalist.recipes.schema import Recipe
from generalist.recipes.studies import Study, StudyRow

RUNS = "runs"
"""The folder that all studies of a place keep their runs in, so that they share those of the same recipe."""


@dataclass(frozen=True)
class Judged:
    """By what the trials of a study are judged: suites of attacks, on the first so many test images."""

    suites: tuple[str, ...]
    images: int | None

    @property
    def loaded(self) -> tuple[Suite, ...]:
        """The suites of attacks."""
        return tuple(load_suite(suite) for suite in self.suites if suite != OOD)

    @property
    def ood(self) -> bool:
        """Whether corruptions and perturbation sequences are measured too."""
        return OOD in self.suites

    def spec(self) -> list[object]:
        """What figures depend on besides the model."""
        stages = [[stage.spec() for stage in suite.stages] for suite in self.loaded]
        return [*stages, *([OOD] if self.ood else []), self.images]


@dataclass(frozen=True)
class Trial:
    """One run of a study. Rows with the same recipe share it. `after` is the one whose run it starts from."""

    key: str
    label: str
    recipe: Recipe
    folder: Path
    judged: Judged
    ranks: int = 1
    after: "Trial | None" = None


@dataclass(frozen=True)
class Plan:
    """All trials, the first seed of every row first; `places[row, seed]` is the key of a trial."""

    study: Study
    judged: Judged
    trials: Mapping[str, Trial]
    places: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def of_row(self, row: int) -> Iterator[tuple[int, Trial]]:
        for seed in self.study.seeds:
            yield seed, self.trials[self.places[row, seed]]


def make_plan(study: Study, folder: Path, *, root: str | None = None) -> Plan:
    """Trials of a study, with their runs below the folder."""
    judged = Judged(study.suites, study.section.images)
    spec = judged.spec()
    trials: dict[str, Trial] = {}
    places: dict[tuple[int, int], str] = {}
    for seed in study.seeds:
        for number, row in enumerate(study.rows):
            recipe = _seeded(row.recipe, seed, root)
            after = None if row.after is None else trials[places[row.after, seed]]
            if after is not None:
                recipe = _started(recipe, after.folder.name)  # so that the digest does not depend on the folder
            digest = fingerprint([decisive(recipe.plain()), row.ranks])
            key = fingerprint([digest, spec])[:20]
            label = f"{_named(row, study.rows)}, seed {seed}"
            place = folder / RUNS / f"{recipe.name}-{digest[:10]}"
            if after is not None:
                recipe = _started(recipe, str(after.folder.resolve()))
            trials.setdefault(key, Trial(key, label, recipe, place, judged, row.ranks, after))
            places[number, seed] = key
    return Plan(study, judged, trials, places)


def _seeded(recipe: Recipe, seed: int, root: str | None) -> Recipe:
    data = recipe.data if root is None else recipe.data.model_copy(update={"root": root})
    return recipe.model_copy(update={"seed": seed, "data": data})


def _started(recipe: Recipe, start: str) -> Recipe:
    """With the weights of `start`; the study has put a section `init` there already."""
    if recipe.init is None:
        raise UserError(f"{recipe.name} starts from another row's run, so init cannot be taken out")
    return recipe.model_copy(update={"init": recipe.init.model_copy(update={"from_": start})})


def _named(row: StudyRow, rows: Sequence[StudyRow]) -> str:
    """With its group, where another row has the same label."""
    alone = [other.label for other in rows].count(row.label) == 1
    return row.label if alone or not row.group else f"{row.group}: {row.label}"
