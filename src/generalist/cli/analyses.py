"""`generalist eval` and `compare` with a suite that is no list of attacks: `--suite curve` and `ood`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalist.cli.messages import complain
from generalist.core.errors import RunError, UserError
from generalist.core.files import sealed, write_json
from generalist.core.names import ANALYSES

if TYPE_CHECKING:
    from generalist.report.console import Reporter
    from generalist.runs.targets import Target


def check_analysis_options(suite: str, *, figure: Path | None, save_adv: Path | None) -> None:
    """Said before anything long begins."""
    if figure is not None and suite not in ANALYSES:
        raise UserError(f"--figure goes with --suite {' or '.join(ANALYSES)}")
    if save_adv is not None and suite in ANALYSES:
        raise UserError(f"--save-adv goes with a suite of attacks, not with --suite {suite}")


def eval_analysis(
    suite: str,
    targets: Iterable["Target"],
    *,
    images: int | None,
    batch_size: int,
    seed: int,
    json_file: str | None,
    figure: Path | None,
    reporter: "Reporter",
) -> None:
    """Every target measured: records, figures and tables."""
    from generalist.distributed.ranks import is_main
    from generalist.runs.analyses import analysis_named, keep_analysis

    analysis = analysis_named(suite)
    records: dict[str, dict[str, Any]] = {}
    drawn, unwritten = list[Path](), list[RunError]()
    for target in targets:
        try:
            result = analysis.measure(target, images=images, batch_size=batch_size, seed=seed, reporter=reporter)
        except KeyboardInterrupt:
            complain("interrupted; results so far are kept: the same command goes on from here")
            raise
        records[target.title] = sealed(result.record())
        if is_main():
            try:
                drawn += keep_analysis(target, analysis, result)
            except RunError as error:  # the result is shown all the same
                unwritten.append(error)
    if is_main():
        show_analysis(suite, records, json_file=json_file, figure=figure, drawn=drawn)
        for title, record in records.items():
            for flag in record["red_flags"] if json_file != "-" else ():
                print(f"red flag, {title}: {flag['message']}")
        if unwritten:
            raise unwritten[0]


def compare_analyses(suite: str, runs: Sequence[Path], *, json_file: str | None, figure: Path | None) -> None:
    """What runs have records of, side by side."""
    from generalist.runs.compare import recorded_analyses

    show_analysis(suite, recorded_analyses(runs, suite), json_file=json_file, figure=figure, drawn=[])


def show_analysis(
    suite: str,
    records: dict[str, dict[str, Any]],
    *,
    json_file: str | None,
    figure: Path | None,
    drawn: Sequence[Path],
) -> None:
    from generalist.report.tables import show
    from generalist.runs.analyses import analysis_named, draw_into

    analysis = analysis_named(suite)
    if figure is not None:
        draw_into(analysis, records, [figure])
        drawn = [*drawn, figure]
    if json_file == "-":
        print(json.dumps(records))
        return
    if json_file is not None:
        write_json(Path(json_file), records)
    for table in analysis.tables(records):
        show(table)
    if drawn:
        print(f"figure: {', '.join(map(str, drawn))}")
