"""`generalist dial`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from generalist.cli import completing
from generalist.cli.importing import importing
from generalist.cli.messages import complain
from generalist.cli.options import MOST_IMAGES, Download, Quiet, Root, read_path, written, written_file
from generalist.core.errors import RunError
from generalist.core.files import sealed, write_atomically, write_json

if TYPE_CHECKING:
    from generalist.evaluation import MixturePoint

MOST_POINTS = 10_000


def dial_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            callback=read_path,
            autocompletion=completing.runs,
            help="A finished run, or several that share a trajectory.",
        ),
    ],
    between: Annotated[
        str,
        typer.Option(metavar="A,B,…", help="Models to mix, the base first; all learners, linf first, if not given."),
    ] = "",
    beyond: Annotated[
        str,
        typer.Option(metavar="X", help="How far from the base: 1 is to the other models, 1.5 half as far again."),
    ] = "1",
    points: Annotated[
        int, typer.Option(min=1, max=MOST_POINTS, help="Mixtures to evaluate at the most, the models themselves too.")
    ] = 21,
    by: Annotated[
        str, typer.Option(metavar="learner|module", help="Weights of whole models, or of their modules too.")
    ] = "learner",
    images: Annotated[
        int, typer.Option("--images", "--n", min=1, max=MOST_IMAGES, help="The first so many validation images.")
    ] = 1000,
    attack: Annotated[
        str, typer.Option(metavar="pgd20|quick", autocompletion=completing.suites, help="Or any other suite.")
    ] = "pgd20",
    threat: Annotated[
        list[str] | None,
        typer.Option(metavar="NORM:EPS", help="Such as linf:8/255, repeatable; the run's own if not given."),
    ] = None,
    batchnorm: Annotated[
        str, typer.Option(metavar="INPUTS", help="clean,linf,…: measure BatchNorm on these, not as the learners saw.")
    ] = "",
    natural_at_least: Annotated[float | None, typer.Option(metavar="PERCENT", help="Choose a point like this.")] = None,
    linf_at_least: Annotated[float | None, typer.Option(metavar="PERCENT", help="Under the first ℓ∞ threat.")] = None,
    l2_at_least: Annotated[float | None, typer.Option(metavar="PERCENT", help="Under the first ℓ2 threat.")] = None,
    l1_at_least: Annotated[float | None, typer.Option(metavar="PERCENT", help="Under the first ℓ1 threat.")] = None,
    maximise: Annotated[
        str | None,
        typer.Option(
            metavar="natural|linf|l2|l1|mean|union",
            help="Of the points like this, the best by: mean (robust accuracy over the threats) if not given.",
        ),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            callback=read_path,
            autocompletion=completing.runs,
            help="Another run of the same data to compare with; repeatable.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=written, help="Write the chosen point as a run; attack it on test, once."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of everything random in attacks and search.")] = 0,
    root: Root = None,
    download: Download = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", callback=written_file, help="All points, one row each.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", callback=written_file, help="Everything, to a file.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Mix the models of finished runs, see the trade-off on validation, choose a point and export it."""
    with importing():
        from generalist.distributed.ranks import is_main
        from generalist.evaluation import Wish
        from generalist.report.console import make_reporter
        from generalist.report.tables import attacked_tables, show
        from generalist.runs.claims import check_free
        from generalist.runs.dial import dial, dial_threats
        from generalist.runs.folder import Run
        from generalist.runs.paths import GLOBAL

    minima = {"natural": natural_at_least, "linf": linf_at_least, "l2": l2_at_least, "l1": l1_at_least}
    least = {name: value for name, value in minima.items() if value is not None}
    wish = Wish(least, maximise or "mean") if least or maximise or export else None
    if wish is not None:  # what cannot be wished for is said before anything is attacked
        wish.check([str(one) for one in dial_threats(Run(runs[0]), threat or ())])
    if export is not None:
        check_free(export)
    reporter = make_reporter(quiet=quiet or json_file == "-" or not is_main())
    try:
        found = dial(
            runs, between=between, beyond=beyond, points=points, by=cast(Any, by), images=images, attack=attack,
            threats=threat or (), batchnorm=batchnorm, beside=beside or [], seed=seed, root=root, download=download,
            reporter=reporter,
        )  # fmt: skip
        chosen = found.choose(wish) if wish is not None else None
        exported = found.export(export, chosen, reporter=reporter) if export is not None else None
    except KeyboardInterrupt:
        complain("interrupted; the points so far are kept: the same command goes on from here")
        raise
    test = None if exported is None else sealed(exported[1].record())
    flags = [] if chosen is None else test["red_flags"] if test else [f.record() for f in found.red_flags(chosen)]
    unwritten = None
    try:
        drawn = found.draw(chosen)
    except RunError as error:  # the figures are shown all the same
        drawn, unwritten = [], error
    picked = None if chosen is None else {**chosen.record(), "rule": chosen.chosen_by, "red_flags": flags}
    if picked is not None:
        found.keep(chosen=picked)
    if not is_main():
        return
    record = found.record()
    record["chosen"] = picked
    record["export"] = None if exported is None else {"run": str(exported[0].folder), "test": test}
    if csv_file is not None:
        write_atomically(csv_file, found.csv().encode())
    if json_file == "-":
        print(json.dumps(record))
    else:
        if json_file is not None:
            write_json(Path(json_file), record)
        print(found.text(chosen))
        if chosen is not None:
            _tell_choice(chosen, flags)
        if exported is not None and test is not None:
            for table in attacked_tables({f"{exported[0].folder.name}/{GLOBAL}": test}):
                show(table)
            print(f"run folder: {exported[0].folder}")
        if drawn:
            print(f"figure: {', '.join(map(str, drawn))}")
    if unwritten is not None:
        raise unwritten


def _tell_choice(chosen: "MixturePoint", flags: list[dict[str, Any]]) -> None:
    print(f"chosen ({chosen.chosen_by}): {chosen}")
    if chosen.is_endpoint:
        print(f"no mixture does better than the endpoint {chosen.mixture.endpoint} by this wish")
    for flag in flags:
        print(f"red flag: {flag['message']}")
