"""`generalist study`."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from generalist.cli.importing import importing
from generalist.cli.messages import complain
from generalist.cli.options import MOST_IMAGES, Download, Json, Quiet, Root, Set, written
from generalist.core.files import user_path

if TYPE_CHECKING:
    from generalist.recipes.studies import Study

Workers = Annotated[
    int, typer.Option(min=1, max=256, help="Processes that share the trials, of one thread each; as many as cores.")
]
Budget = Annotated[
    str | None, typer.Option(metavar="TIME", help="Such as 2h or 90m: no trial is begun that would take longer.")
]
Storage = Annotated[
    str | None,
    typer.Option(metavar="FILE|URL", help="To share it: a file, or a database such as sqlite:///study.db."),
]


def study_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A shipped study or a YAML file; all are listed without one.")
    ] = None,
    setting: Annotated[
        str | None, typer.Option(metavar="NAME", help="Data, network and length; the paper's if not given.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help="How many, from 0 on; 3 if not given.")] = None,
    budget: Budget = None,
    workers: Workers = 1,
    set_: Set = None,
    suite: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Attacks to judge by; the study's own if not given.")
    ] = None,
    images: Annotated[
        int | None, typer.Option("--images", "--n", min=1, max=MOST_IMAGES, help="Only the first n test images.")
    ] = None,
    out: Annotated[
        Path, typer.Option(callback=written, help="The folder for runs, tables and figures of all studies.")
    ] = Path("studies"),
    storage: Storage = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trials and what they cost here.")] = False,
    retry: Annotated[bool, typer.Option("--retry-failed", help="Do trials again that failed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Begin even what takes days.")] = False,
    root: Root = None,
    download: Download = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study of many trials: a table or ablation of the papers, or your own."""
    with importing():
        from generalist.recipes.studies import load_study, study_names
        from generalist.report import tables
        from generalist.report.console import make_reporter
        from generalist.runs.studies.study import parse_budget, run_study
        from generalist.training.guards import Interrupted

    if name is None:
        tables.show(tables.parts_table("study", study_names()))
        return
    seconds = None if budget is None else parse_budget(budget)
    changes: dict[str, Any] = {"suite": suite.split(",") if suite else None, "images": images}
    study = load_study(name, setting=setting, seeds=seeds, overrides=set_ or [], **changes)
    where = None if root is None else str(user_path(root).resolve())
    if dry_run:
        _list_trials(study, out, storage, where, workers=workers, download=download, as_json=as_json)
        return
    try:
        table = run_study(
            study, out=out, storage=storage, workers=workers, budget_seconds=seconds, root=where, download=download,
            retry=retry, however_long=yes, reporter=make_reporter(quiet=quiet or as_json),
        )  # fmt: skip
    except (Interrupted, KeyboardInterrupt) as stopped:
        again = shlex.join(["generalist", *sys.argv[1:]])
        complain(f"interrupted; the trials so far are kept, and the one at work from its last checkpoint: {again}")
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None
    if as_json:
        print(json.dumps(table.record()))
        return
    print(table)
    if not quiet:
        print(f"table and figure: {out / study.name}")


def _list_trials(
    study: "Study", out: Path, storage: str | None, root: str | None, *, workers: int, download: bool, as_json: bool
) -> None:
    from generalist.report import tables
    from generalist.runs.studies.study import known_jobs, prepare, price

    plan, files = prepare(study, out=out, root=root)
    cost = price(plan, known_jobs(plan, storage, files), workers=workers, download=download)
    facts = [
        {
            "trial": trial.label,
            "recipe": trial.recipe.name,
            "seed": trial.recipe.seed,
            "state": cost.jobs[key].state,
            "training_seconds": round(cost.seconds[key].training + cost.seconds[key].validation, 1),
            "evaluation_seconds": round(cost.seconds[key].evaluation, 1),
            "total_seconds": round(cost.seconds[key].total, 1),
            "run": str(trial.folder),
        }
        for key, trial in plan.trials.items()
    ]
    if as_json:
        print(json.dumps({"study": study.name, "trials": facts, "seconds_left": round(cost.computing, 1)}))
        return
    tables.show(tables.trials_table(study.name, facts))
    print(cost)
