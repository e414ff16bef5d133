"""`generalist eval --suite curve` and `generalist compare --suite curve`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalist.cli.messages import complain
from generalist.core.errors import RunError, UserError
from generalist.core.files import sealed, write_json
from generalist.core.names import CURVE

if TYPE_CHECKING:
    from generalist.report.console import Reporter
    from generalist.runs.targets import Target


def check_curve_options(suite: str, *, figure: Path | None, save_adv: Path | None) -> None:
    """Said before anything long begins."""
    if figure is not None and suite != CURVE:
        raise UserError("--figure goes with --suite curve")
    if save_adv is not None and suite == CURVE:
        raise UserError("--save-adv goes with a suite of attacks, not with --suite curve")


def eval_curves(
    targets: Iterable["Target"],
    *,
    images: int | None,
    batch_size: int,
    seed: int,
    json_file: str | None,
    figure: Path | None,
    reporter: "Reporter",
) -> None:
    """Minimal distances of every target: records, figures and a table."""
    from generalist.distributed.ranks import is_main
    from generalist.runs.curve import curve_of_target, keep_curve

    records: dict[str, dict[str, Any]] = {}
    drawn, unwritten = list[Path](), list[RunError]()
    for target in targets:
        try:
            result = curve_of_target(target, images=images, batch_size=batch_size, seed=seed, reporter=reporter)
        except KeyboardInterrupt:
            complain("interrupted; distances so far are kept: the same command goes on from here")
            raise
        records[target.title] = sealed(result.record())
        if is_main():
            try:
                drawn += keep_curve(target, result)
            except RunError as error:  # the result is shown all the same
                unwritten.append(error)
    if is_main():
        _show(records, json_file=json_file, figure=figure, drawn=drawn)
        for title, record in records.items():
            for flag in record["red_flags"] if json_file != "-" else ():
                print(f"red flag, {title}: {flag['message']}")
        if unwritten:
            raise unwritten[0]


def compare_curves(runs: Sequence[Path], *, json_file: str | None, figure: Path | None) -> None:
    """The curves that runs have records of, side by side."""
    from generalist.runs.curve import recorded_curves

    _show(recorded_curves(runs), json_file=json_file, figure=figure, drawn=[])


def _show(
    records: dict[str, dict[str, Any]], *, json_file: str | None, figure: Path | None, drawn: Sequence[Path]
) -> None:
    from generalist.report.curves import curve_table
    from generalist.report.tables import show
    from generalist.runs.curve import draw_into

    if figure is not None:
        draw_into(records, [figure])
        drawn = [*drawn, figure]
    if json_file == "-":
        print(json.dumps(records))
        return
    if json_file is not None:
        write_json(Path(json_file), records)
    show(curve_table(records))
    if drawn:
        print(f"figure: {', '.join(map(str, drawn))}")
