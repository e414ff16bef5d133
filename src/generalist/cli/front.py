"""`generalist front`."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from generalist.cli import completing
from generalist.cli.importing import importing
from generalist.cli.options import read_path, written_file
from generalist.core.errors import UserError, shown
from generalist.core.files import write_atomically, write_json


def front_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            callback=read_path,
            autocompletion=completing.runs,
            help="Run folders that `eval` has a record of, or records of fronts.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RUN,RUN…",
            help="A front by hand: folders, or patterns of their names (at-*); repeatable. By method if not given.",
        ),
    ] = None,
    at: Annotated[
        str, typer.Option(metavar="N,N…", help="Natural accuracies; three that all fronts reach if not given.")
    ] = "",
    threat: Annotated[
        str | None, typer.Option(metavar="THREAT", help="linf:8/255, linf or union; the first one if not given.")
    ] = None,
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="The strongest all have if not given.")] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A front to be measured against; of several the best counts. Repeatable."),
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="N,R", help="Natural and robust accuracy at which hypervolumes begin.")
    ] = "0,0",
    split: Annotated[
        str, typer.Option(metavar="test|validation", help="What was evaluated, or the dials that the runs keep.")
    ] = "test",
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", callback=written_file, help="All points, one row each.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", callback=written_file, help="Everything, to a file.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", callback=written_file, help="A Markdown table.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=written_file, help="A .png or .svg file; without an ending both."),
    ] = None,
) -> None:
    """Compare trade-offs as fronts: robust at fixed natural accuracy, dominated points, hypervolume, over seeds."""
    levels, origin = _numbers("--at", at), _numbers("--reference", reference)
    groups = dict(_group(text) for text in group or [])
    if figure is not None and figure.suffix.lower() not in (".png", ".svg", ""):
        raise UserError(f"--figure writes a .png or .svg file, or both without an ending, got {shown(str(figure))}")
    with importing():
        from generalist.report.front_layouts import csv_text, markdown_text, plain_text
        from generalist.runs.front import fronts

    found = fronts(
        runs or [], groups=groups, at=levels, suite=suite, threat=threat, baselines=baseline or [],
        reference=cast(Any, tuple(origin)), split=cast(Any, split),
    )  # fmt: skip
    files: dict[Path, bytes] = {}
    if csv_file is not None:
        files[csv_file] = _bytes(csv_text(found))
    if markdown_file is not None:
        files[markdown_file] = _bytes(markdown_text(found))
    if figure is not None:
        from generalist.report.front_figure import draw_fronts  # matplotlib is slow to import, and for this alone

        wanted = [figure.suffix.lower()] if figure.suffix else [".png", ".svg"]
        drawn = draw_fronts(found)
        files |= {figure.with_suffix(kind) if not figure.suffix else figure: drawn[kind] for kind in wanted}
    for path, content in files.items():
        write_atomically(path, content)
    if json_file == "-":
        print(json.dumps(found.record()))
        return
    if json_file is not None:
        write_json(Path(json_file), found.record())
    print(plain_text(found))


def _numbers(option: str, given: str) -> list[float]:
    try:
        return [float(part) for part in given.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between them, got {shown(given)}") from None


def _group(given: str) -> tuple[str, list[str]]:
    name, _, listed = given.partition("=")
    parts = [part.strip() for part in listed.split(",") if part.strip()]
    if not name.strip() or not parts:
        raise UserError(f"--group takes NAME=RUN,RUN…, got {shown(given)}")
    return name.strip(), parts


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # a path may hold bytes that are no UTF-8
