"""What a search found: the front, and the recipe chosen from it as a file."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalist.core.errors import RunError
from generalist.core.files import sealed, write_atomically, write_json
from generalist.report import study_table
from generalist.report.comparison import Column
from generalist.report.study_table import ResultRow, StudyTable
from generalist.runs.studies.search import ERROR, FOLDER, HOPELESS, Search, counts
from generalist.runs.studies.space import Knob, knobs_of
from generalist.runs.studies.study import StudyFiles
from generalist.runs.studies.yaml_file import recipe_file

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FRONT, BEHIND = "on the front", "dominated"


@dataclass(frozen=True)
class Tuned:
    """What a search found: all trials as a table, the chosen one, and the file that has its recipe."""

    table: StudyTable
    chosen: str
    file: Path
    files: StudyFiles

    def record(self) -> dict[str, Any]:
        return {**self.table.record(), "chosen": self.chosen, "recipe": str(self.file)}


@dataclass(frozen=True)
class _Outcome:
    number: int
    values: tuple[float, ...]
    params: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def dominates(self, other: "_Outcome") -> bool:
        pairs = list(zip(self.values, other.values, strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def sum_up(
    search: Search,
    trials: "Sequence[FrozenTrial]",
    files: StudyFiles,
    *,
    at_least: Mapping[str, float],
    maximise: str | None,
) -> Tuned:
    """Write the table, the figure and the chosen recipe."""
    done = [
        _Outcome(trial.number, tuple(trial.values), trial.params, trial.user_attrs)
        for trial in trials
        if trial.state.name == "COMPLETE"
    ]
    if not done:
        reasons = [trial.user_attrs[ERROR] for trial in trials if ERROR in trial.user_attrs]
        raise RunError(f"no trial of {search.name} was finished{': ' + reasons[0] if reasons else ''}")
    knobs = knobs_of(search.recipe, search.searched)
    table = _table(search, trials, done, knobs)
    chosen = _choose(search, done, at_least, maximise)
    fields = {
        knob.name: (knob.override(value), f"was {knob.given}")
        for knob in knobs
        if (value := chosen.params[knob.name]) != knob.given
    }
    figures = ", ".join(f"{name} {value:.2f}" for name, value in zip(search.objectives, chosen.values, strict=True))
    first = next((one for one in done if one.number == 0), None)
    before = "" if first is None or first is chosen else "; as given: " + ", ".join(
        f"{name} {value:.2f}" for name, value in zip(search.objectives, first.values, strict=True)
    )  # fmt: skip
    comments = [
        f"trial {chosen.number} of {len(trials)} of a search for {', '.join(search.objectives)}",
        f"on the validation split, seed {search.recipe.seed}: {figures}{before}",
        f"chosen: {_rule(at_least, maximise)}",
    ]
    text = recipe_file(search.recipe, search.base, search.method, search.overrides, fields, comments)
    path = files.folder / f"{search.recipe.name}-tuned.yaml"
    write_atomically(path, text.encode())
    tuned = Tuned(table, f"trial {chosen.number}", path, files)
    _write(tuned, search)
    return tuned


def _rule(at_least: Mapping[str, float], maximise: str | None) -> str:
    least = [f"{name} at least {value:g}" for name, value in at_least.items()]
    return ", ".join([*least, f"most {maximise}" if maximise else "largest sum of the objectives"])


def _choose(search: Search, done: Sequence[_Outcome], at_least: Mapping[str, float], maximise: str | None) -> _Outcome:
    """Of the front, by the rule."""
    front = [one for one in done if not any(other.dominates(one) for other in done)]

    def shortfall(one: _Outcome) -> float:
        values = dict(zip(search.objectives, one.values, strict=True))
        return sum(max(0.0, least - values[name]) for name, least in at_least.items())

    def worth(one: _Outcome) -> float:
        return sum(one.values) if maximise is None else one.values[search.objectives.index(maximise)]

    best = min(front, key=lambda one: (shortfall(one), -worth(one), one.number))
    if shortfall(best) > 0:
        figures = ", ".join(f"{name} {value:.2f}" for name, value in zip(search.objectives, best.values, strict=True))
        warnings.warn(f"no trial reaches {_rule(at_least, maximise)}; the nearest has {figures}", stacklevel=2)
    return best


def _table(
    search: Search, trials: "Sequence[FrozenTrial]", done: Sequence[_Outcome], knobs: Sequence[Knob]
) -> StudyTable:
    """One row per trial; those that were stopped or failed say so."""
    finished = {one.number: one for one in done}
    rows, seed = [], search.recipe.seed
    for trial in trials:
        one = finished.get(trial.number)
        if one is None and not counts(trial):
            continue
        group = BEHIND if one is None or any(other.dominates(one) for other in done) else FRONT
        why = "" if one else trial.user_attrs.get(ERROR) or trial.user_attrs.get(HOPELESS, "")
        state = "failed" if ERROR in trial.user_attrs else "stopped"
        values = {} if one is None else dict(zip(search.objectives, one.values, strict=True))
        rows.append(
            ResultRow(
                label=f"trial {trial.number}{' (as given)' if trial.number == 0 else ''}",
                group=group,
                values={knob.name: trial.params.get(knob.name) for knob in knobs},
                figures={name: {seed: value} for name, value in values.items()},
                missing={} if one else {seed: f"{state}: {why}"},
                runs={seed: trial.user_attrs.get(FOLDER, "")},
            )
        )
    stopped = sum(HOPELESS in trial.user_attrs for trial in trials)
    failed = [f"failed: trial {t.number}: {t.user_attrs[ERROR]}" for t in trials if ERROR in t.user_attrs]
    return StudyTable(
        name=search.name,
        description=f"a search around {search.recipe.name}",
        reference="",
        about="% right of the validation split",
        seeds=(seed,),
        columns=tuple(Column(name) for name in search.objectives),
        rows=tuple(sorted(rows, key=lambda row: (row.group != FRONT, bool(row.missing)))),
        notes=(*([f"{stopped} trials were stopped early"] if stopped else []), *failed),
    )


def _write(tuned: Tuned, search: Search) -> None:
    from generalist.report.study_figures import Panel, draw_study  # matplotlib is slow to import

    table, files = tuned.table, tuned.files
    for ending, text in (("md", study_table.markdown_text(table)), ("csv", study_table.csv_text(table))):
        write_atomically(files.table(ending), text.encode(errors="backslashreplace"))
    write_json(files.table("json"), sealed(tuned.record()))
    across, *others = (Column(name) for name in search.objectives)
    panels = [Panel(y=(column,), x=across) for column in others]
    for ending, content in draw_study(table, kind="scatter", panels=panels).items():
        write_atomically(files.figure(ending[1:]), content)
