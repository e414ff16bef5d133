"""`generalist modules`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli.importing import importing
from generalist.cli.messages import complain
from generalist.cli.options import MOST_IMAGES, Download, Json, Method, Quiet, Root, Set, written, written_file
from generalist.core.files import write_atomically


def modules_command(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|RECIPE", help="A run folder, or a recipe with weights in init.from."),
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="Of a run: its global model, or a learner.")] = "global",
    set_: Set = None,
    method: Method = None,
    out: Annotated[
        Path | None, typer.Option(callback=written, help="The folder for report and figures; modules/ in the run.")
    ] = None,
    threat: Annotated[
        list[str] | None,
        typer.Option(metavar="NORM:EPS", help="Such as linf:8/255, repeatable; the recipe's own if not given."),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(max=10_000, help="Natural epochs of each fine-tuning; one, and at least 300 steps, if not given."),
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of the fine-tuning; it falls linearly to 0.")] = 0.03,
    images: Annotated[
        int, typer.Option("--images", "--n", min=1, max=MOST_IMAGES, help="Images of the validation split.")
    ] = 1000,
    price: Annotated[
        float | None,
        typer.Option(help="Propose modules up to this price; half the whole network's, and at least 1, if not given."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Processes of one thread each; as many as cores if not given.")
    ] = None,
    root: Root = None,
    download: Download = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", callback=written_file, help="Plain numbers, one per cell.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure what natural accuracy each module can give for how much robustness, and propose `trains`."""
    with importing():
        from generalist.report.console import make_reporter
        from generalist.report.modules import csv_text, show_report
        from generalist.runs.modules import measure_modules

    try:
        report = measure_modules(
            target, name=model, out=out, threats=threat or (), epochs=epochs, lr=lr, images=images, price=price,
            workers=workers or _cores(), overrides=set_ or (), method=method, root=root, download=download,
            reporter=make_reporter(quiet=quiet or as_json),
        )  # fmt: skip
    except KeyboardInterrupt:
        complain("interrupted; modules measured so far are kept: the same command goes on from here")
        raise
    if csv_file is not None:
        write_atomically(csv_file, csv_text(report).encode())
    if as_json:
        print(json.dumps(report.record()))
        return
    show_report(report)
    if not quiet:
        print(f"report and figures: {', '.join(map(str, report.files))}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
