"""Fronts of the trade-off, read from evaluated runs, from the dials that they keep, or from records of earlier ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from generalist.core.errors import UserError, shown, unknown
from generalist.core.files import fingerprint, user_path
from generalist.evaluation import SUITE_NAMES
from generalist.evaluation.front_records import FrontRecord, JudgedModel, fronts_of, read_front_record, unpacked
from generalist.evaluation.glance import NATURAL
from generalist.evaluation.records import robust_images
from generalist.mixing import MergeWeights
from generalist.recipes.differences import differences
from generalist.recipes.schema import Recipe
from generalist.report.comparison import ON_TEST, Entry, distinct_names, entry_warnings
from generalist.report.fronts import FrontComparison, compare_fronts
from generalist.runs.compare import check_recorded, distinct_runs, entry_of, run_folders, strongest_suite, suite_name
from generalist.runs.folder import Run
from generalist.runs.paths import RunPaths

SplitName = Literal["test", "validation"]
Groups = Mapping[str, Sequence[str | Path]]
NAMING = ("name", "setting", "method")
"""Fields of a recipe that say what it is, and decide nothing."""


def fronts(
    runs: Sequence[Run | str | Path],
    *,
    groups: Groups | None = None,
    at: Sequence[float] = (),
    suite: str | None = None,
    threat: str | None = None,
    baselines: Sequence[str] = (),
    reference: tuple[float, float] = (0.0, 0.0),
    split: SplitName = "test",
) -> FrontComparison:
    """Trade-offs compared as fronts: robust accuracy at fixed natural accuracies, dominated points, hypervolume.

    Runs of one method that differ in a swept field (β of TRADES, ε of AT) make one front, and so do exported points of
    a dial. Runs that differ in the seed are its replicates: figures are means over seeds with standard deviations.
    Between its points a front is a straight line; beyond them it is not continued. Nothing is trained or attacked.

    Args:
        runs: Runs or their folders that were evaluated alike, and records of fronts (JSON files).
        groups: Fronts made by hand, each a name with runs: paths, or patterns such as `"at-*"` of the names of folders.
            Other runs are grouped by their method.
        at: Natural accuracies in percent; if none are given, three that all fronts of two points or more reach, the
            baselines taken together.
        suite: The suite whose records are compared; the strongest shipped one that all have, if not given. Robust is
            what survives all of it.
        threat: A threat, the first one of a norm (`"linf"`), or `"union"` of all; the first threat if not given.
        baselines: Names of fronts. The others are measured against the best of them at each natural accuracy.
        reference: Natural and robust accuracy in percent at which hypervolumes begin.
        split: `"test"`: what was evaluated. `"validation"`: all points of the dials that the runs keep. The two are
            never mixed.

    Returns:
        The comparison: `rows`, `dominated`, `record()` as JSON; `print` shows a table.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> for beta in (1, 3):
        ...     swept = {**small, "learners.linf.objective.beta": beta}
        ...     run = generalist.train("digits-trades", out=tmp / f"trades-{beta}", overrides=swept)
        ...     result = generalist.evaluate(run, threats="linf:1/10", images=20)
        >>> found = generalist.fronts([tmp / "trades-1", tmp / "trades-3"])
        >>> [(row.name, row.points) for row in found.rows]
        [('trades', 2)]
        >>> [point.name for point in found.fronts[0].points]
        ['beta=1', 'beta=3']
    """
    if split not in get_args(SplitName):
        raise unknown("split", split, get_args(SplitName))
    by_hand = _ByHand(groups or {})
    paths = [run.folder if isinstance(run, Run) else user_path(run) for run in runs]
    paths += by_hand.more_paths(paths)
    files = [path for path in paths if path.is_file()]
    folders = [path for path in paths if path not in files]
    found = distinct_runs(run_folders(folders, purpose="compare")) if folders or not files else []
    stored = [by_hand.regrouped(read_front_record(path)) for path in files]
    notes: list[str] = []
    if split == "validation":
        if stored:
            raise UserError(f"{files[0]} has figures of the {stored[0].split} split, not of validation")
        records = [by_hand.regrouped(_dialled(run)) for run in found]
        chosen = suite_name(suite, records[0].attacks) if suite else next(iter(records[0].attacks))
        notes.append("on validation points are judged by the images that choose among them: the luck of it is included")
    else:
        chosen = _chosen_suite(suite, found, stored)
        records = stored
        if found:
            check_recorded(found, chosen)
            evaluated, said = _evaluated(found, chosen, by_hand)
            records, notes = [*stored, *evaluated], said
    by_hand.check_used()
    each, under = fronts_of(_without_repeats(records), suite=chosen, threat=threat)
    first = records[0]
    return compare_fronts(
        each, at=at, baselines=baselines, reference=reference, notes=notes, data=first.data, split=first.split,
        suite=chosen, threat=under,
    )  # fmt: skip


def judged_run(run: Run, records: Mapping[str, Mapping[str, Any]], *, name: str, group: str) -> JudgedModel:
    """The global model of a run by its evaluation records, one per suite; robust is what survives all of a suite."""
    summary = run.summary if run.finished else {}
    natural = robust_images(next(iter(records.values())))[0]
    robust = {}
    for suite, record in records.items():
        _, rows = robust_images(record)
        robust[suite] = {threat: torch.stack(list(columns.values())).all(0) for threat, columns in rows.items()}
    made_of = summary.get("dial")
    chosen_by, training = summary.get("selected_by", run.recipe.select), run.identity
    if made_of:
        chosen_by = f"dial on {made_of['chosen']['split']} ({made_of['chosen']['rule']})"
        training = fingerprint(sorted({end["run_sha256"] for end in made_of["endpoints"].values()}))
    return JudgedModel(
        name=name,
        group=group,
        natural=natural,
        robust=robust,
        chosen_by=ON_TEST if chosen_by == "test" else chosen_by,
        recipe_sha256=run.identity,
        training=training,
        cost_in_at=summary.get("cost_in_at"),
        seconds=summary.get("seconds"),
        source=str(run.folder),
    )


def conditions(record: Mapping[str, Any], *, seed: int, setting: str = "", title: str = "") -> FrontRecord:
    """A record of fronts without models, for those that were evaluated as this evaluation record says."""
    return FrontRecord(
        seed=seed,
        data=record.get("data", ""),
        split=record.get("split", "test"),
        images=record["images"],
        images_sha256=fingerprint(record["examples"]),
        attacks={record["suite"]: fingerprint(record["stages"])},
        setting=setting,
        title=title,
    )


class _ByHand:
    """Groups that a user named, by paths or by patterns of names."""

    def __init__(self, groups: Groups) -> None:
        self._groups = {name: [str(part) for part in parts] for name, parts in groups.items()}
        self._unused = {(name, part) for name, parts in self._groups.items() for part in parts}

    def more_paths(self, given: Sequence[Path]) -> list[Path]:
        """Runs and records that are named here alone."""
        places = {path.resolve() for path in given}
        named = [user_path(part) for parts in self._groups.values() for part in parts]
        new = [path for path in named if path.is_file() or RunPaths(path).exists]
        return list({path.resolve(): path for path in new if path.resolve() not in places}.values())

    def group(self, *names: str, path: Path | None = None) -> str | None:
        """The group of what is called by these names, or lies there; the first that fits."""
        for group, parts in self._groups.items():
            for part in parts:
                here = path is not None and user_path(part).resolve() == path.resolve()
                if here or any(fnmatchcase(name, part) for name in names):
                    self._unused.discard((group, part))
                    return group
        return None

    def regrouped(self, record: FrontRecord) -> FrontRecord:
        path, models = Path(record.title), []
        for model in record.models:
            own = path if model.source or path.is_file() else None  # what stands beside a dial lies elsewhere
            models.append(replace(model, group=self.group(model.name, model.group, path=own) or model.group))
        return replace(record, models=tuple(models))

    def check_used(self) -> None:
        for group, part in sorted(self._unused):
            raise UserError(f"group {group}: no run is called or lies at {shown(part)}")


def _chosen_suite(given: str | None, runs: Sequence[Run], stored: Sequence[FrontRecord]) -> str:
    recorded = [*(run.recorded_suites for run in runs), *(record.suites for record in stored)]
    if given is not None:
        return suite_name(given, [name for names in recorded for name in names])
    shared = [name for name in recorded[0] if all(name in names for names in recorded)]
    strongest = next((name for name in reversed(SUITE_NAMES) if name in shared), None)
    return strongest or next(iter(shared), None) or strongest_suite(runs)


@dataclass(frozen=True)
class _Member:
    """A run of a front; an exported point of a dial has `mixture`."""

    run: Run
    recipe: Recipe
    entry: Entry
    mixture: str


def _evaluated(runs: Sequence[Run], suite: str, by_hand: _ByHand) -> tuple[list[FrontRecord], list[str]]:
    """The evaluated runs, a record for each, and what to beware of."""
    names = distinct_names([run.recipe.name for run in runs], [run.folder.resolve() for run in runs])
    grouped: dict[str, list[_Member]] = {}
    for run, name in zip(runs, names, strict=True):
        recipe, made_of = run.recipe, run.summary.get("dial") if run.finished else None
        group = by_hand.group(run.folder.resolve().name, path=run.folder) or method_name(recipe)
        member = _Member(run, recipe, entry_of(run, name, suite), made_of["mixture"] if made_of else "")
        grouped.setdefault(group, []).append(member)
    records, notes = [], list[str]()
    for group, members in grouped.items():
        _check_distinct(members)
        for member, name in zip(members, _point_names(members), strict=True):
            model = judged_run(member.run, {suite: member.entry.record}, name=name, group=group)
            alike = conditions(member.entry.record, seed=member.recipe.seed, title=member.entry.name)
            records.append(replace(alike, data=member.entry.data, models=(model,)))
        notes += _swept_more(group, members)
    return records, [*notes, *entry_warnings([member.entry for row in grouped.values() for member in row])]


def method_name(recipe: Recipe) -> str:
    """What runs of a method are called whatever its swept fields are: the recipe's name without the setting."""
    name = recipe.name.removeprefix(f"{recipe.setting}-") if recipe.setting else recipe.name
    return name or recipe.name


def _check_distinct(members: Sequence[_Member]) -> None:
    seen: dict[str, Run] = {}
    for member in members:
        if not member.mixture and (before := seen.setdefault(member.run.identity, member.run)) is not member.run:
            raise UserError(f"{before.folder} and {member.run.folder} are the same recipe with the same seed; give one")


def _varied(recipes: Sequence[Recipe]) -> list[tuple[str, ...]]:
    """The paths of fields in which recipes differ, the seed and names aside."""
    found = {path: None for other in recipes[1:] for path, _, _ in differences(recipes[0], other)}
    return [path for path in found if path[0] not in (*NAMING, "seed")]


def _point_names(members: Sequence[_Member]) -> list[str]:
    """Each by the fields that are swept, or by its mixture; runs of several methods in one front by the method too."""
    methods = list(dict.fromkeys(member.recipe.name for member in members))
    names = []
    for member in members:
        alike = [one.recipe for one in members if one.recipe.name == member.recipe.name]
        if member.mixture:
            fields = [member.mixture]
        else:
            fields = [f"{path[-1]}={_value(member.recipe, path)}" for path in _varied(alike)]
        parts = [method_name(member.recipe)] if len(methods) > 1 or not fields else []
        names.append(" ".join([*parts, ", ".join(fields)]).strip())
    seen = [(name, member.recipe.seed) for name, member in zip(names, members, strict=True)]
    return [
        f"{name} ({member.run.folder.name})" if seen.count((name, member.recipe.seed)) > 1 else name
        for name, member in zip(names, members, strict=True)
    ]


def _value(recipe: Recipe, path: Sequence[str]) -> str:
    value: Any = recipe.plain()
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else shown(value)


def _swept_more(group: str, members: Sequence[_Member]) -> Iterator[str]:
    """A front is of one knob; where its runs differ in what is no knob of a method, that is said."""
    fields = [".".join(path) for path in _varied([member.recipe for member in members]) if path[0] != "learners"]
    if fields:
        yield f"runs of {group} differ in {', '.join(fields)}"


def _dialled(run: Run) -> FrontRecord:
    """All points of the dial that a run keeps, and the runs beside it, on validation."""
    record = run.dial_record
    if record is None:
        raise UserError(f"{run.folder} keeps no dial; dial it first", command=f"generalist dial {run.folder}")
    if "judged" not in record:
        raise UserError(
            f"{run.folder} keeps a dial of an earlier version; dial it again as before: its points are kept",
            command=f"generalist dial {run.folder} …",
        )
    judged, suite, images = record["judged"], record["attack"], record["images"]
    kind = "dial by module" if record["by"] == "module" else "dial"
    own: dict[str, Any] = {
        "chosen_by": "none, all of a dial",
        "recipe_sha256": run.identity,
        "training": run.identity,
        "source": str(run.folder),
    }
    if run.finished:
        own |= {"cost_in_at": run.summary.get("cost_in_at"), "seconds": run.summary.get("seconds")}

    def model(name: str, group: str, bits: Mapping[str, str], **more: Any) -> JudgedModel:
        rows = {measure: unpacked(text, images) for measure, text in bits.items()}
        return JudgedModel(name, group, rows.pop(NATURAL), {suite: rows}, **more)

    group = f"{method_name(run.recipe)}, {kind}"
    models = [
        model(str(MergeWeights(point["weights"], point["modules"])), group, bits, **own)
        for point, bits in zip(record["points"], judged["points"], strict=True)
    ]
    models += [model(name, name, bits, chosen_by="its run") for name, bits in judged["beside"].items()]
    return FrontRecord(
        seed=run.recipe.seed,
        data=judged["data"],
        split=record["split"],
        images=images,
        images_sha256=judged["images_sha256"],
        attacks={suite: judged["attacks_sha256"]},
        models=tuple(models),
        title=str(run.folder),
    )


def _without_repeats(records: Sequence[FrontRecord]) -> list[FrontRecord]:
    """A run that stands beside several dials counts once."""
    seen: dict[tuple[int, str, str], JudgedModel] = {}
    found = []
    for record in records:
        kept = []
        for model in record.models:
            before = seen.setdefault((record.seed, model.group, model.name), model)
            if before is model or not _same(before, model):
                kept.append(model)
        found.append(replace(record, models=tuple(kept)))
    return found


def _same(one: JudgedModel, other: JudgedModel) -> bool:
    """Whether they have the same verdicts."""
    return not one.recipe_sha256 and one.record()["verdicts"] == other.record()["verdicts"]
