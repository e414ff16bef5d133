"""What the trials of a study add up to: columns, means over seeds, paired differences, the paper's values."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from generalist.core.errors import unknown
from generalist.core.names import MEAN, SUITE_NAMES, UNION
from generalist.evaluation import load_suite
from generalist.evaluation.accuracy import paired_change
from generalist.recipes.catalogue import method_of
from generalist.recipes.schema import Recipe
from generalist.recipes.studies import Study, StudyRow
from generalist.report.comparison import NATURAL, Column, paper_values
from generalist.report.paper import PAPER_NAMES, network_of, paper_table
from generalist.report.study_table import ResultRow, Spread, StudyTable
from generalist.runs.studies.ledger import Job
from generalist.runs.studies.plan import Plan
from generalist.runs.studies.trial import OOD_FIGURES, Result, column_name, unpack

MINUTES, COST, MEMORY = "minutes", "cost in AT runs", "memory MiB"
COSTS: Mapping[str, Column] = {
    "minutes": Column(MINUTES, lower_is_better=True, digits=1),
    "cost": Column(COST, lower_is_better=True),
    "memory": Column(MEMORY, lower_is_better=True, digits=0),
}
"""Columns that are no accuracies, by what a study calls them."""
PAPER_MINUTES = "training_minutes_rtx3090"
NORMS = ("linf", "l2", "l1")


def columns_of(study: Study, plan: Plan) -> tuple[Column, ...]:
    """The columns that a study asks for; all that its suites have, if it does not say.

    A norm stands for the strongest attack under the first threat of that norm, and is left out where there is none.
    """
    threats = [str(threat) for threat in study.rows[0].recipe.validation.threats]
    attacks = {attack: suite.name for suite in plan.judged.loaded for attack in suite.columns}
    strongest = list(attacks)[-1] if attacks else ""
    every = [Column(NATURAL), *(Column(column_name(a, t), t, a) for t in threats for a in attacks)]
    every += [Column(union, union, strongest) for union in (MEAN, UNION) if len(threats) > 1 and attacks]
    every += [Column(name, lower_is_better=name == "flip rate") for name in OOD_FIGURES if plan.judged.ood]
    if not study.section.columns:
        return (*every, COSTS["minutes"])
    names = {"mean": MEAN, "union": UNION}
    found = []
    for asked in study.section.columns:
        attack, _, norm = asked.rpartition(" ")
        exact = next((column for column in every if column.name == names.get(asked, asked)), None)
        if exact is not None:
            found.append(exact)
        elif asked in COSTS:
            found.append(COSTS[asked])
        elif norm in NORMS and (not attack or attack in attacks):
            threat = next((threat for threat in threats if threat.startswith(f"{norm}:")), None)
            if threat is not None:
                found.append(Column(column_name(attack or strongest, threat), threat, attack or strongest))
        elif asked not in ("mean", "union") and not (norm in NORMS and attack in _shipped_attacks()):
            known = [*(column.name for column in every), *COSTS, *NORMS, *(f"{a} {n}" for a in attacks for n in NORMS)]
            raise unknown(f"column of study {study.section.name}:", asked, known)
    return tuple(dict.fromkeys(found))


def _shipped_attacks() -> set[str]:
    """Of all shipped suites: a study that is judged by another one has fewer columns."""
    return {column for name in SUITE_NAMES for column in load_suite(name).columns}


def _value(result: Result, column: Column) -> float | None:
    if column.name == MINUTES:
        return float(result["seconds"]) / 60
    if column.name == COST:
        return float(result["cost_in_at"])
    if column.name == MEMORY:
        return float(result["peak_memory_mib"])
    value = result["accuracy"].get(column.name)
    return None if value is None else float(value)


def make_table(plan: Plan, jobs: Mapping[str, Job]) -> StudyTable:
    """The table of a study, as far as it is done; what failed or waits says so."""
    study, columns = plan.study, columns_of(plan.study, plan)
    results = {key: job.result for key, job in jobs.items() if job.state == "done"}
    base = _baseline(study)
    rows = tuple(_row(plan, number, jobs, columns, base) for number in range(len(study.rows)))
    section = study.section
    some: Mapping[str, Any] = next(iter(results.values()), {})
    names = some.get("classes", {}).get("names", ())
    images = f"{some['images']} test images of {some['data']}" if some else "nothing is evaluated yet"
    suites = " and ".join(study.suites)
    return StudyTable(
        name=study.name,
        description=section.description,
        reference=section.reference,
        about=f"% right of {images}, suite {suites}" if some else images,
        seeds=study.seeds,
        columns=columns,
        rows=rows,
        baseline=section.baseline,
        paper=paper_table(section.paper).title if section.paper else "",
        class_names=tuple(names),
        notes=tuple(_notes(plan, jobs, results)),
    )


def _baseline(study: Study) -> int | None:
    labels = [row.label for row in study.rows]
    return None if study.section.baseline is None else labels.index(study.section.baseline)


def _row(plan: Plan, number: int, jobs: Mapping[str, Job], columns: Sequence[Column], base: int | None) -> ResultRow:
    row = plan.study.rows[number]
    states = {seed: jobs[trial.key] for seed, trial in plan.of_row(number)}
    done = {seed: job.result for seed, job in states.items() if job.state == "done"}
    figures: dict[str, dict[int, float]] = {}
    for column in columns:
        values = {seed: _value(result, column) for seed, result in done.items()}
        found = {seed: value for seed, value in values.items() if value is not None}
        if found:
            figures[column.name] = found
    missing = {seed: _why(job) for seed, job in states.items() if job.state != "done"}
    changes = {}
    if base is not None and base != number:
        others = {seed: jobs[trial.key].result for seed, trial in plan.of_row(base) if jobs[trial.key].state == "done"}
        changes = _changes(done, others, columns)
    return ResultRow(
        label=row.label,
        group=row.group,
        values=row.values,
        figures=figures,
        paper=_paper(plan, row, columns),
        changes=changes,
        missing=missing,
        classes=_classes(list(done.values())),
        runs={seed: result["folder"] for seed, result in done.items()},
    )


def _why(job: Job) -> str:
    if job.state == "failed":
        return f"failed: {job.error}"
    return f"running: {job.worker}" if job.state == "running" else "waiting"


def _changes(ours: Mapping[int, Result], theirs: Mapping[int, Result], columns: Sequence[Column]) -> dict[str, Spread]:
    """Seed by seed; with one seed in common, image by image."""
    seeds = [seed for seed in ours if seed in theirs]
    found = {}
    for column in columns:
        pairs = [(_value(ours[seed], column), _value(theirs[seed], column)) for seed in seeds]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        if not differences:
            continue
        found[column.name] = Spread.over_seeds(differences)
        a, b = ours[seeds[0]], theirs[seeds[0]]
        alike = a["examples"] == b["examples"] and column.name in a["bits"] and column.name in b["bits"]
        if len(differences) == 1 and alike:
            after, before = (unpack(one["bits"][column.name], one["images"]) for one in (a, b))
            found[column.name] = Spread(differences[0], paired_change(after, before).margin)
    return found


def _classes(results: Sequence[Result]) -> dict[str, list[float | None]]:
    """The mean over the seeds."""
    found: dict[str, list[float | None]] = {}
    for measure in results[0]["classes"]["accuracy"] if results else ():
        columns = zip(*(result["classes"]["accuracy"][measure] for result in results), strict=True)
        found[measure] = [None if None in values else mean(values) for values in columns]
    return found


def _paper(plan: Plan, row: StudyRow, columns: Sequence[Column]) -> dict[str, float]:
    """What the paper prints for such a row: the same data, network, method, attack and radius."""
    if plan.study.section.paper is None:
        return {}
    recipe = row.recipe
    rows = paper_table(plan.study.section.paper).rows
    methods = rows.get((recipe.data.name, network_of(recipe.model.name, recipe.model.width) or ""), {})
    names = (row.paper,) if row.paper is not None else PAPER_NAMES.get(method_of(recipe) or "", ())
    metrics = next((methods[name] for name in names if name in methods), {})
    threats = [str(threat) for threat in recipe.validation.threats]
    found = _corrupted(rows, recipe, names)
    for suite in plan.study.suites:
        found |= paper_values(columns, metrics, data=recipe.data.name, suite=suite, threats=threats)
    if PAPER_MINUTES in metrics and any(column.name == MINUTES for column in columns):
        found[MINUTES] = metrics[PAPER_MINUTES]
    return found


def _corrupted(rows: Mapping[Any, Any], recipe: Recipe, names: Sequence[str]) -> dict[str, float]:
    """Table IV, whose datasets are CIFAR-10-C and -P."""
    network = network_of(recipe.model.name, recipe.model.width) or ""
    found: dict[str, float] = {}
    for column, kind in (("severity 5", "c"), ("sequences", "p")):
        methods = rows.get((f"{recipe.data.name}-{kind}", network), {})
        for name in names:
            if name in methods:
                found[column] = methods[name]["accuracy"]
    return found


def _notes(plan: Plan, jobs: Mapping[str, Job], results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = []
    for key, trial in plan.trials.items():
        if jobs[key].state == "failed":
            notes.append(f"failed: {trial.label}: {jobs[key].error}")
    waiting = [trial.label for key, trial in plan.trials.items() if jobs[key].state in ("waiting", "running")]
    if waiting:
        notes.append(f"not done yet: {len(waiting)} of {len(plan.trials)} trials")
    if len({result["examples"] for result in results.values()}) > 1:
        notes.append("warning: the rows were not attacked on the same images")
    tested = [trial.label for key, trial in plan.trials.items() if trial.recipe.select == "test" and key in results]
    if tested:
        notes.append(f"warning: checkpoints selected on the test split, so their figures flatter: {', '.join(tested)}")
    flagged = sum(bool(result["red_flags"]) for result in results.values())
    if flagged:
        notes.append(f"{flagged} of {len(results)} trials have red flags: see `generalist report` of their runs")
    return notes
