"""Run folders that were evaluated alike, read into one comparison; nothing is trained or attacked again."""

import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generalist.core.errors import UserError, unknown
from generalist.core.names import ANALYSES, CURVE, OOD
from generalist.core.user_code import is_reference
from generalist.evaluation import SUITE_NAMES, load_suite, model_hash
from generalist.evaluation.classwise import classwise
from generalist.models import read_extra
from generalist.recipes.catalogue import method_of
from generalist.report.classwise import ClassComparison
from generalist.report.comparison import Comparison, Entry, check_alike, distinct_names, make_comparison
from generalist.report.ood_comparison import check_alike_ood, make_ood_comparison
from generalist.report.paper import network_of, paper_table
from generalist.runs.folder import Run
from generalist.runs.paths import GLOBAL, RunPaths


def compare(runs: Sequence[Run | str | Path], *, suite: str | None = None, paper: str | None = None) -> Comparison:
    """Evaluated runs side by side; nothing is trained or attacked again.

    Args:
        runs: Runs, or their folders, whose global models were evaluated alike, from Python or by `generalist eval`.
        suite: The suite whose records are compared, `ood` among them; the strongest shipped one that all runs have, if
            not given.
        paper: The number of a paper's table whose values stand beside ours: I to IV (Generalist++), 1a to 5 (CVPR).
            IV is about `ood`, which is then the suite.

    Returns:
        The comparison: rows, columns and notes; `record()` is all of it as JSON.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> runs = [generalist.train(f"digits-{name}", out=tmp / name, overrides=small) for name in ("nt", "at")]
        >>> results = [generalist.evaluate(run, threats="linf:1/10", images=20) for run in runs]
        >>> found = generalist.compare(runs)
        >>> [row["recipe"] for row in found.record()["runs"]]
        ['digits-nt', 'digits-at']
    """
    if suite == CURVE:
        raise UserError("curves have a table of their own", command="generalist compare RUN… --suite curve")
    beside = paper_table(paper) if paper else None
    suite = OOD if suite is None and beside is not None and beside.is_ood else suite
    entries = _entries(runs, suite)
    return (make_ood_comparison if suite == OOD else make_comparison)(entries, paper=beside)


def recorded_analyses(runs: Sequence[Path], suite: str) -> dict[str, dict[str, Any]]:
    """The records of an analysis of several runs' global models by name, refused unless they are alike."""
    folders = [Run(path) for path in run_folders(runs)]
    check_recorded(folders, suite)
    names = [run.folder.resolve().name for run in folders]
    unique = [name if names.count(name) == 1 else str(run.folder) for run, name in zip(folders, names, strict=True)]
    records = {name: run.analysis(suite) for run, name in zip(folders, unique, strict=True)}
    if suite == OOD:
        check_alike_ood(records)
        return records
    (first, one), *others = records.items()
    for name, record in others:
        for what, key in (("images", "examples"), ("threats", "threats")):
            if list(record[key]) != list(one[key]):
                raise UserError(f"{first} and {name} were evaluated with different {what}; evaluate them alike")
    return records


def compare_classes(
    runs: Sequence[Run | str | Path], *, suite: str | None = None, column: str | None = None
) -> ClassComparison:
    """Evaluated runs side by side, class by class; nothing is trained or attacked again.

    Args:
        runs: Runs, or their folders, whose global models were evaluated alike.
        suite: The suite whose records are compared; the strongest shipped one that all runs have, if not given.
        column: A column of the suite, such as `AA`; the last one if not given.

    Returns:
        Natural, robust and true-union accuracy of every class; `record()` is all of it as JSON.
    """
    entries = _entries(runs, suite)
    check_alike(entries)
    names = recorded_classes(Path(entries[0].run))
    found = {entry.name: classwise(entry.record, column=column, classes=names) for entry in entries}
    return ClassComparison(entries[0].data, entries[0].record["suite"], found)


def recorded_classes(folder: Path) -> list[str]:
    """From the card of the global model; none where it has none."""
    model = RunPaths(folder).model_file()
    if not model.is_file():
        return []
    data = read_extra(model.with_suffix("")).get("data")
    names = data.get("classes") if isinstance(data, dict) else None
    return names if isinstance(names, list) else []


def _entries(runs: Sequence[Run | str | Path], suite: str | None) -> list[Entry]:
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    found = distinct_runs(run_folders(folders))
    places = [run.folder.resolve() for run in found]
    recorded = [name for run in found for name in run.recorded_suites]
    chosen = suite_name(suite, recorded) if suite else strongest_suite(found)
    check_recorded(found, chosen)
    recipes = [run.recipe for run in found]
    names = distinct_names([recipe.name for recipe in recipes], places)
    return [entry_of(run, name, chosen) for run, name in zip(found, names, strict=True)]


def distinct_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders, none of them twice."""
    found = [Run(folder) for folder in folders]
    places = [run.folder.resolve() for run in found]
    for run, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{run.folder} is given twice")
    return found


def run_folders(paths: Sequence[Path], *, purpose: str = "compare") -> list[Path]:
    """Those that hold a run; `runs/*` names other files and folders too, which are left out with a word."""
    if not paths:
        raise UserError(f"nothing to {purpose}: give run folders")
    others = [path for path in paths if path.exists() and not RunPaths(path).exists]
    listed = ", ".join(map(str, others))
    if len(others) == len(paths):
        raise UserError(f"nothing to {purpose}: not a run folder (no recipe.yaml): {listed}")
    if others:
        warnings.warn(f"left out, not a run folder: {listed}", stacklevel=3)
    return [path for path in paths if path not in others]


def suite_name(given: str, recorded: Iterable[str]) -> str:
    """A suite's name, shipped or recorded somewhere, the YAML file of one, or module:callable."""
    if Path(given).is_file() or is_reference(given):
        return load_suite(given).name
    known = {*SUITE_NAMES, *ANALYSES, *recorded}
    if given not in known:
        raise unknown("suite", given, known)
    return given


def strongest_suite(runs: Sequence[Run]) -> str:
    """Of all runs; if they have none in common, the strongest that any has, so that it is asked of the others."""
    for enough in (all, any):
        for suite in reversed(SUITE_NAMES):
            if enough(run.record_file(suite).is_file() for run in runs):
                return suite
    return SUITE_NAMES[0]


def check_recorded(runs: Sequence[Run], suite: str) -> None:
    missing = [run for run in runs if not run.record_file(suite).is_file()]
    if not missing:
        return
    command = ["generalist", "eval", *(str(run.folder) for run in missing), "--suite", suite]
    made = next((run for run in runs if run not in missing), None)
    if made is not None:
        record = _read(made, suite)
        threats = list(record["threats"]) if suite == CURVE else []
        if suite not in ANALYSES:
            threats = [threat for threat in record["per_image"] if threat != "natural"]
        if threats and any(threats != [str(threat) for threat in run.recipe.validation.threats] for run in missing):
            command += [part for threat in threats for part in ("--threat", threat)]
        command += ["--n", str(record["images"])]
    lacking = ", ".join(str(run.folder) for run in missing)
    have = "have" if len(missing) > 1 else "has"
    raise UserError(f"{lacking} {have} no record of suite {suite}; make it with: {shlex.join(command)}")


def _read(run: Run, suite: str) -> dict[str, Any]:
    return run.analysis(suite) if suite in ANALYSES else run.record(suite)


def entry_of(run: Run, name: str, suite: str) -> Entry:
    recipe, record = run.recipe, _read(run, suite)
    summary = run.summary if run.finished else {}
    return Entry(
        name=name,
        recipe=recipe.name,
        run=str(run.folder),
        method=method_of(recipe),
        data=record.get("data", recipe.data.name),
        network=network_of(recipe.model.name, recipe.model.width),
        selected_by=summary.get("selected_by", recipe.select),
        seconds=summary.get("seconds"),
        record=record,
        outdated=is_outdated(run, run.record_file(suite), record),
    )


def is_outdated(run: Run, path: Path, record: Mapping[str, Any], name: str = GLOBAL) -> bool:
    """Whether the record is of another model than the run has now."""
    model = run.model_file(name)
    if not model.is_file():
        return False
    weights = record.get("weights")
    if weights is not None:
        return bool(weights["sha256"] != run.model_digest(name))
    if model.stat().st_mtime <= path.stat().st_mtime:
        return False  # the file's time may be that of a copy, so a newer one is only a reason to look
    return model_hash(run.model(name)) != record.get("model_sha256")
