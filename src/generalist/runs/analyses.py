"""Evaluations that are no list of attacks: how each is measured, shown and drawn; a run keeps record and figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from generalist.core.errors import UserError
from generalist.core.files import sealed, write_atomically
from generalist.core.names import CURVE, OOD
from generalist.evaluation import CurveResult, OodResult
from generalist.runs.curve import curve_of_target
from generalist.runs.ood import ood_of_target
from generalist.runs.targets import Target

Records = Mapping[str, Mapping[str, Any]]
AnalysisResult = CurveResult | OodResult


@dataclass(frozen=True)
class Analysis:
    """`measure` takes a target and its options, `tables` and `draw` take records by name.

    A figure is bytes by file ending, .png and .svg. `draw` and `tables` import what they need, matplotlib is slow.
    """

    name: str
    measure: Callable[..., AnalysisResult]
    tables: Callable[[Records], list[Table]]
    draw: Callable[[Records], dict[str, bytes]]


def _curve_tables(records: Records) -> list[Table]:
    from generalist.report.curves import curve_table

    return [curve_table(records)]


def _draw_curves(records: Records) -> dict[str, bytes]:
    from generalist.report.curves import draw_curves

    return draw_curves(records)


def _ood_tables(records: Records) -> list[Table]:
    from generalist.report.ood import ood_tables

    return ood_tables(records)


def _draw_ood(records: Records) -> dict[str, bytes]:
    from generalist.report.ood import draw_ood

    return draw_ood(records)


_KNOWN: Mapping[str, Analysis] = {
    CURVE: Analysis(CURVE, curve_of_target, _curve_tables, _draw_curves),
    OOD: Analysis(OOD, ood_of_target, _ood_tables, _draw_ood),
}


def analysis_named(suite: str) -> Analysis:
    """The analysis of a name of `ANALYSES`."""
    return _KNOWN[suite]


def keep_analysis(target: Target, analysis: Analysis, result: AnalysisResult) -> list[Path]:
    """Write the record and the figure into the run folder, if the target is of a run; the main rank calls this."""
    if target.run is None:
        return []
    record = sealed(result.record())
    target.run.write_analysis(record, target.name)
    paths = target.run.analysis_figures(analysis.name, target.name)
    draw_into(analysis, {target.title: record}, paths)
    return list(paths)


def draw_into(analysis: Analysis, records: Records, paths: Sequence[Path]) -> None:
    """The figure of several records, .png or .svg by the ending of each path."""
    for path in paths:
        if path.suffix.lower() not in (".png", ".svg"):
            raise UserError(f"a figure is a .png or .svg file, got {path}")
    drawn = analysis.draw(records)
    for path in paths:
        write_atomically(path, drawn[path.suffix.lower()])
