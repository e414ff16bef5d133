"""Accuracy against ε of a model of a run, or of any model; a run keeps the record and the figure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from generalist.core.errors import UserError
from generalist.core.files import sealed, write_atomically
from generalist.core.names import CURVE
from generalist.distributed import ranks
from generalist.evaluation import CurveResult, evaluate_curve
from generalist.report.console import Reporter, Silent
from generalist.runs.folder import Run
from generalist.runs.targets import Target


def curve_of_target(
    target: Target,
    *,
    images: int | None = None,
    batch_size: int = 250,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> CurveResult:
    """The minimal distances of one target; of a run, its other records of the same model count too."""
    reporter = reporter if reporter is not None and ranks.is_main() else Silent()
    total = min(len(target.split), images or len(target.split))
    broken = None if target.run is None else partial(_broken, target.run, target.name)

    def progress(done: float, of: int, share: float) -> None:
        reporter.advance(done, of, share=share)

    with reporter.bar(f"{target.title} {CURVE}", 0, total):
        result = evaluate_curve(
            target.model, target.split, threats=target.threats, seed=seed, batch_size=batch_size, limit=images,
            workers=target.workers, cache=target.cache, broken=broken, progress=progress,
        )  # fmt: skip
    return replace(result, flags=(*target.flags, *result.flags), about=target.about)


def _broken(run: Run, name: str, model: str) -> dict[str, list[tuple[Fraction, frozenset[str]]]]:
    """The images that attack suites broke, of this very model, by norm and radius."""
    found: dict[str, list[tuple[Fraction, frozenset[str]]]] = {}
    for record in run.suite_records(name):
        if record.get("model_sha256") != model:
            continue
        for threat, row in record["threats"].items():
            verdicts = record["per_image"][threat].values()
            names = [n for n, each in zip(record["examples"], zip(*verdicts, strict=True), strict=True) if 0 in each]
            found.setdefault(row["norm"], []).append((Fraction(row["eps"]), frozenset(names)))
    return found


def keep_curve(target: Target, result: CurveResult) -> list[Path]:
    """Write the record and the figure into the run folder, if the target is of a run; the main rank calls this."""
    if target.run is None:
        return []
    record = sealed(result.record())
    target.run.write_curve(record, target.name)
    paths = target.run.curve_figures(target.name)
    draw_into({target.title: record}, paths)
    return list(paths)


def draw_into(records: Mapping[str, Mapping[str, Any]], paths: Sequence[Path]) -> None:
    """The curves as figures; each path ends with .png or .svg."""
    from generalist.report.curves import draw_curves  # matplotlib is slow to import

    drawn = draw_curves(records)
    for path in paths:
        write_atomically(path, drawn[path.suffix.lower()])


def recorded_curves(runs: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The curves of several runs' global models by name, refused unless images and norms are the same."""
    folders = [Run(path) for path in runs]
    names = [run.folder.resolve().name for run in folders]
    records: dict[str, dict[str, Any]] = {}
    for run, name in zip(folders, names, strict=True):
        if not run.record_file(CURVE).is_file():
            command = f"generalist eval {run.folder} --suite {CURVE}"
            raise UserError(f"{run.folder} has no record of suite {CURVE}; make it with: {command}")
        records[name if names.count(name) == 1 else str(run.folder)] = run.curve_record()
    (first, one), *others = records.items()
    for name, record in others:
        for what, key in (("images", "examples"), ("threats", "threats")):
            if list(record[key]) != list(one[key]):
                raise UserError(f"{first} and {name} were evaluated with different {what}; evaluate them alike")
    return records
