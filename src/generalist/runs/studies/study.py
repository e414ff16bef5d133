"""A study from its file to its table and figure."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from generalist.core.errors import RunError, UserError, shown
from generalist.core.files import sealed, user_path, write_atomically, write_json
from generalist.recipes.studies import Study
from generalist.report import study_table
from generalist.report.comparison import NATURAL, Column
from generalist.report.console import Reporter, Silent, duration
from generalist.report.paper import paper_table
from generalist.report.study_table import StudyTable
from generalist.runs.experiment import load_data
from generalist.runs.studies.cost import Seconds, estimates
from generalist.runs.studies.ledger import GRACE_SECONDS, Job, Ledger
from generalist.runs.studies.plan import Plan, make_plan
from generalist.runs.studies.results import columns_of, make_table
from generalist.runs.studies.worker import Work, run_workers, work

LONGEST_HOURS = 48.0
"""What would take longer is not begun unless it is asked for."""


@dataclass(frozen=True)
class StudyFiles:
    """Where a study keeps what it found."""

    folder: Path

    @property
    def storage(self) -> Path:
        return self.folder / "trials.journal"

    def table(self, ending: str) -> Path:
        return self.folder / f"table.{ending}"

    def figure(self, ending: str) -> Path:
        return self.folder / f"figure.{ending}"


@dataclass(frozen=True)
class StudyCost:
    """What is left of a study, and what that takes here."""

    plan: Plan
    jobs: Mapping[str, Job]
    seconds: Mapping[str, Seconds]
    workers: int

    @property
    def left(self) -> list[str]:
        return [key for key in self.plan.trials if self.jobs[key].state not in ("done", "failed")]

    def seconds_left(self, key: str) -> float:
        return self.seconds[key].total * (1 - self.jobs[key].share)

    def until_done(self, key: str) -> float:
        """Seconds until it is done, with those that it has to wait for."""
        after = self.plan.trials[key].after
        return (self.seconds_left(key) if key in self.left else 0.0) + (self.until_done(after.key) if after else 0.0)

    @property
    def computing(self) -> float:
        """Seconds of one core, over all trials that are left."""
        return sum(map(self.seconds_left, self.left))

    @property
    def waiting(self) -> float:
        """Seconds until all is done, with that many workers."""
        longest = max(map(self.until_done, self.left), default=0.0)
        return max(longest, self.computing / self.workers)

    def __str__(self) -> str:
        done = sum(job.state == "done" for job in self.jobs.values())
        with_workers = f", {duration(self.waiting)} with {self.workers} workers" if self.workers > 1 else ""
        return (
            f"{self.plan.study.name}: {len(self.plan.trials)} trials, {done} of them done;"
            f" the rest takes about {duration(self.computing)} here{with_workers}"
        )


def parse_budget(text: str) -> float:
    """2h, 90m, 1h30m, 45s → seconds."""
    parts = re.fullmatch(
        r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip()
    )
    if not text.strip() or parts is None:
        raise UserError(f"a budget is a time such as 2h, 90m or 1h30m, got {shown(text)}")
    return sum(float(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True))


def price(plan: Plan, jobs: Mapping[str, Job], *, workers: int = 1, download: bool = False) -> StudyCost:
    """What is left of a study and its cost on this machine."""
    return StudyCost(plan, jobs, estimates(plan.trials, download=download), workers)


def known_jobs(plan: Plan, storage: str | None, files: StudyFiles, *, retry: bool = False) -> dict[str, Job]:
    """How the trials stand; no file is made for a study that was never begun. With `retry` what failed waits again."""
    if storage is None and not files.storage.exists():
        return {key: Job(key) for key in plan.trials}
    ledger = Ledger(storage or str(files.storage), plan.study.name)
    if retry:
        ledger.retry(plan.trials)
    return ledger.jobs(plan.trials)


def prepare(study: Study, *, out: str | Path = "studies", root: str | None = None) -> tuple[Plan, StudyFiles]:
    """The trials of a study, and its folder; all that can be wrong with the study is said now."""
    folder = user_path(out)
    plan = make_plan(study, folder, root=root)
    if study.section.paper is not None:
        paper_table(study.section.paper)  # refuses one that there is not
    for panel in _panels(study, columns_of(study, plan)):
        if panel.x is None and study.section.figure.kind == "lines":
            raise UserError(f"study {study.section.name}: a figure of lines needs x, a field of the grid")
    return plan, StudyFiles(folder / study.name)


def run_study(
    study: Study,
    *,
    out: str | Path = "studies",
    storage: str | None = None,
    workers: int = 1,
    budget_seconds: float | None = None,
    root: str | None = None,
    download: bool = False,
    retry: bool = False,
    however_long: bool = False,
    grace_seconds: float = GRACE_SECONDS,
    reporter: Reporter | None = None,
) -> StudyTable:
    """Do the trials of a study, as far as they are not done, and write its table and figure.

    Args:
        study: What `load_study` made.
        out: The folder for runs, tables and figures. Studies that share it share runs of the same recipe.
        storage: Where processes and machines share the study: a file, or the URL of a database.
        workers: So many processes of one thread each; one is this process itself.
        budget_seconds: No trial is begun that would take longer than this, from now.
        root: The folder that has the data.
        download: Fetch missing data from its official source.
        retry: Do trials that failed again.
        however_long: Begin even what takes days.
        grace_seconds: After how long without a sign of life a worker elsewhere is taken for dead.
        reporter: Where progress goes.

    Returns:
        The table, also of a study that is not finished.
    """
    reporter = reporter or Silent()
    plan, files = prepare(study, out=out, root=root)
    jobs = known_jobs(plan, storage, files, retry=retry)
    cost = price(plan, jobs, workers=workers, download=download)
    _check_cost(cost, budget_seconds, however_long=however_long)
    if cost.left:
        _check_data(plan, download=download)
    shared = storage or str(files.storage)
    ledger = Ledger(shared, study.name, grace_seconds=grace_seconds)
    if cost.left:
        ledger.add({key: trial.label for key, trial in plan.trials.items()})
        reporter.say(_announced(cost, budget_seconds))
        deadline = None if budget_seconds is None else time.time() + budget_seconds
        task = Work(shared, study.name, plan.trials, cost.seconds, deadline, download, grace_seconds)
        _work(task, plan, workers, reporter)
    table = make_table(plan, ledger.jobs(plan.trials))
    write_results(table, study, plan, files)
    return table


def _check_cost(cost: StudyCost, budget: float | None, *, however_long: bool) -> None:
    if not cost.left:
        return
    cheapest = min(map(cost.until_done, cost.left))
    if budget is not None and budget < cheapest:
        raise UserError(
            f"a budget of {duration(budget)} is below one trial: the cheapest takes about {duration(cheapest)} here"
        )
    if budget is None and cost.waiting > 3600 * LONGEST_HOURS and not however_long:
        days = cost.waiting / 86400
        raise UserError(
            f"{cost.plan.study.name} would take about {days:.0f} days here; give a budget or a smaller setting"
            " such as digits or cifar10-mini",
            command="--budget 8h, --setting cifar10-mini, or --yes to begin all the same",
        )


def _check_data(plan: Plan, *, download: bool) -> None:
    """Missing data is said once, before anything begins, and not by every trial."""
    seen: list[Any] = []
    for trial in plan.trials.values():
        if trial.recipe.data not in seen:
            seen.append(trial.recipe.data)
            load_data(trial.recipe, download=download)


def _announced(cost: StudyCost, budget: float | None) -> str:
    if budget is None:
        return str(cost)
    fitting, spent = 0, 0.0
    for key in cost.left:
        if spent + cost.seconds_left(key) <= budget * cost.workers:
            fitting, spent = fitting + 1, spent + cost.seconds_left(key)
    return f"{cost}; {fitting} of {len(cost.left)} trials fit into {duration(budget)}"


def _work(task: Work, plan: Plan, workers: int, reporter: Reporter) -> None:
    total = sum(seconds.total for seconds in task.seconds.values())
    told: dict[str, str] = {}

    def share(jobs: Mapping[str, Job]) -> float:
        ended = {key: 1.0 if job.state in ("done", "failed") else job.share for key, job in jobs.items()}
        return sum(task.seconds[key].total * part for key, part in ended.items()) / total

    ledger = task.ledger()

    def look(jobs: Mapping[str, Job] | None = None) -> None:
        jobs = ledger.jobs(task.trials) if jobs is None else jobs
        ended = [key for key, job in jobs.items() if job.state in ("done", "failed")]
        for key in ended:
            if told and key not in told:
                reporter.say(f"{plan.trials[key].label}: {_outcome(jobs[key])}")
            told[key] = jobs[key].state
        told.setdefault("", "")  # what was done before this command is not news
        reporter.advance(len(ended), len(jobs), share=share(jobs))

    jobs = ledger.jobs(task.trials)
    done = sum(job.state in ("done", "failed") for job in jobs.values())
    with reporter.bar(plan.study.name, done, len(jobs), share=share(jobs)):
        look(jobs)
        run_workers(partial(work, task), workers, look=look, say=reporter.say)
    jobs = ledger.jobs(task.trials)
    if workers > 1 and any(jobs[key].state in ("waiting", "running") for key in task.may_begin(jobs)):
        raise RunError("all workers have ended before the study; what is done is kept: the same command goes on")


def _outcome(job: Job) -> str:
    if job.state == "failed":
        return f"failed: {job.error}"
    figures = "  ".join(f"{name} {value:.1f}" for name, value in job.result["accuracy"].items())
    return f"{figures}, {duration(job.result['seconds'])}"


def write_results(table: StudyTable, study: Study, plan: Plan, files: StudyFiles) -> list[Path]:
    """The table as Markdown, CSV, LaTeX and JSON, and the figure as PNG and SVG; what there is so far."""
    texts = {
        "md": study_table.markdown_text(table),
        "csv": study_table.csv_text(table),
        "tex": study_table.latex_text(table),
    }
    written = []
    for ending, text in texts.items():
        write_atomically(files.table(ending), text.encode(errors="backslashreplace"))
        written.append(files.table(ending))
    write_json(files.table("json"), sealed(table.record()))
    written.append(files.table("json"))
    panels = _panels(study, table.columns)
    if panels and any(row.figures for row in table.rows):
        from generalist.report.study_figures import draw_study  # matplotlib is slow to import, and for this alone

        figure = study.section.figure
        for ending, content in draw_study(table, kind=figure.kind, panels=panels, xlabel=figure.xlabel).items():
            write_atomically(files.figure(ending[1:]), content)
            written.append(files.figure(ending[1:]))
    return written


def _panels(study: Study, columns: Sequence[Column]) -> list[Any]:
    """The panels that a study asks for; without any, one for each group. Columns that a setting lacks are left out."""
    from generalist.report.study_figures import Panel

    figure = study.section.figure
    known = _by_name(columns)

    def column(name: str) -> Column | None:
        return known.get(name)

    def asked(names: Sequence[str]) -> tuple[Column, ...]:
        if not names:
            return tuple(one for one in columns if one.threat or one.name == NATURAL)
        return tuple(one for name in names if (one := column(name)) is not None)

    groups = list(dict.fromkeys(row.group for row in study.rows))
    if figure.panels:
        panels = [
            Panel(
                y=asked(panel.y or figure.y),
                x=column(panel.x or "") if figure.kind == "scatter" else panel.x or figure.x,
                group=panel.group,
                title=panel.title,
            )
            for panel in figure.panels
        ]
    else:
        across = column(figure.x or "") if figure.kind == "scatter" else figure.x
        panels = [Panel(y=asked(figure.y), x=across, group=group if len(groups) > 1 else None) for group in groups]
    return [panel for panel in panels if panel.y and (figure.kind != "scatter" or panel.x is not None)]


def _by_name(columns: Sequence[Column]) -> dict[str, Column]:
    """Columns by their names, and by what a study may call them."""
    found: dict[str, Column] = {}
    for column in columns:
        norm = column.threat.partition(":")[0]
        short = {"mean over norms": "mean", "true union": "union", "cost in AT runs": "cost", "memory MiB": "memory"}
        for name in (column.name, short.get(column.name, column.name), f"{column.attack} {norm}"):
            found.setdefault(name, column)
        found[norm] = column  # the strongest attack is the last
    return found
