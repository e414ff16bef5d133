"""Tables of results: colours in a terminal, aligned plain text elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from generalist.core.names import MEAN, UNION
from generalist.report.console import duration

if TYPE_CHECKING:
    from generalist.data import Survey

MISSING = float("-inf")
NATURAL = "natural"
_CLASSES = 12
"""Classes that are listed by name."""
CAPTION = "in brackets: 95 % interval (Wilson) over the choice of images"


def accuracy_table(records: Mapping[str, Mapping[str, Any]], *, title: str = "") -> Table:
    """Rows of evaluation records by name; the best of each column in bold green."""
    threats = list(dict.fromkeys(threat for record in records.values() for threat in record["robust"]))
    attack = next((record["attack"] for record in records.values()), "")
    heads = [NATURAL, *(f"{attack} {threat}" for threat in threats), MEAN, UNION]
    rows = {name: _cells(record, threats) for name, record in records.items()}
    best = [max((cells[i] for cells in rows.values()), default=MISSING) for i in range(len(heads))]
    shown = [i for i, value in enumerate(best) if value != MISSING]
    measured = [NATURAL, *threats, MEAN, UNION]
    with_intervals = any(record.get("interval_95") for record in records.values())
    table = _table(title, caption=CAPTION if with_intervals else None)
    table.add_column("model")
    for i in shown:
        table.add_column(heads[i], justify="right")
    for name, cells in rows.items():
        bounds = records[name].get("interval_95", {})
        marks = (_with_interval(_mark(cells[i], best[i], len(rows)), bounds.get(measured[i])) for i in shown)
        table.add_row(escape(name), *marks)
    return table


def attacked_tables(records: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Suites of one column make one table, a row a model; others a table a model, a row a threat."""
    if all(len(columns) == 1 for record in records.values() for columns in record["accuracy"].values()):
        images = " or ".join(map(str, sorted({record["images"] for record in records.values()})))
        return [
            accuracy_table({name: _one_column(r) for name, r in records.items()}, title=f"test split, {images} images")
        ]
    return [_suite_table(name, record) for name, record in records.items()]


def _one_column(record: Mapping[str, Any]) -> dict[str, Any]:
    rows = {row: next(iter(columns.items())) for row, columns in record["accuracy"].items()}
    unions = {"mean_over_norms": MEAN, "true_union": UNION}
    flat: dict[str, Any] = {"natural": record["natural"], "attack": next(iter(rows.values()))[0]}
    flat["robust"] = {row: value for row, (_, value) in rows.items() if row not in unions.values()}
    bounds = record.get("interval_95", {})
    flat["interval_95"] = {row: next(iter(of.values())) for row, of in bounds.get("accuracy", {}).items()}
    flat["interval_95"] |= {NATURAL: bounds["natural"]} if bounds else {}
    return flat | {key: rows[row][1] for key, row in unions.items() if row in rows}


def _suite_table(name: str, record: Mapping[str, Any]) -> Table:
    columns = list(dict.fromkeys(column for row in record["accuracy"].values() for column in row))
    bounds = record.get("interval_95", {})
    natural = _with_interval(f"{record['natural']:.2f}", bounds.get("natural"))
    table = _table(f"{name}: {record['images']} images, natural {natural}", caption=CAPTION if bounds else None)
    table.add_column(record["suite"])
    for column in columns:
        table.add_column(column, justify="right")
    for row, values in record["accuracy"].items():
        within = bounds.get("accuracy", {}).get(row, {})
        table.add_row(row, *(_with_interval(f"{values[column]:.2f}", within.get(column)) for column in columns))
    return table


def _cells(record: Mapping[str, Any], threats: Sequence[str]) -> list[float]:
    robust = [record["robust"].get(threat, MISSING) for threat in threats]
    return [record["natural"], *robust, record.get("mean_over_norms", MISSING), record.get("true_union", MISSING)]


def _mark(value: float, best: float, rows: int) -> str:
    if value == MISSING:
        return "–"
    return f"[bold green]{value:.2f}[/]" if rows > 1 and value == best else f"{value:.2f}"


def run_table(summary: Mapping[str, Any], *, steps: int) -> Table:
    """The models that a run kept, as they did on the split that chose them."""
    by = summary["selected_by"]
    records = {
        f"{name} (epoch {row['epoch']})": {**row, "attack": f"PGD{steps}"}
        for name, row in summary["selected"].items()
        if row
    }
    split = "test split (chosen on the test set!)" if by == "test" else "validation split"
    title = f"{summary['recipe']}: {split}, selected by {by}, {duration(summary['seconds'])}"
    return accuracy_table(records, title=title)


MOST_PHASES = 12


def plan_table(facts: Mapping[str, Any], *, description: str) -> Table:
    """What each learner of a recipe does, and when."""
    table = _table(f"{facts['recipe']}: {description}")
    for column in ("learner", "objective", "threat", "optimizer", "lr", "γ over training", "trained epochs"):
        table.add_column(column)
    for name, row in facts["learners"].items():
        gamma = " ".join(f"{value:g}" for value in row["gamma"])
        cells = (row["objective"], row["threat"], row["optimizer"], f"{row['lr']:g}", gamma, f"{row['live_epochs']:g}")
        table.add_row(name, *cells)
    return table


def plan_lines(facts: Mapping[str, Any]) -> list[str]:
    """The rest of a plan, a line for each fact."""
    images = ", ".join(f"{count} {part}" for part, count in facts["images"].items())
    resets = _few(facts["resets_after_epochs"]) or "none"
    alone = len(facts["learners"]) == 1
    return [
        *_part_lines(facts),
        *_placement_lines(facts),
        f"images: {images}",
        f"length: {facts['epochs']} epochs of {facts['steps_per_epoch']} steps",
        "one learner: it is never reset" if alone else f"learners are reset after epochs: {resets}",
        f"cost: {facts['cost_in_at']:.2f} × a PGD-10 AT run of the same length",
        f"on {facts['device']} in {facts['precision']}",
    ]


def _part_lines(facts: Mapping[str, Any]) -> list[str]:
    """What a learner trains and when, for those that do not train everything all the time."""
    lines = []
    for name, row in facts["learners"].items():
        first, last = row["epochs"]
        trains = row["trains"]
        said = [f"{trains['modules']} ({trains['parameters']:,} parameters)"] if trains else []
        said += [f"epochs {first}–{last}"] if [first, last] != [1, facts["epochs"]] else []
        lines += [f"{name} trains {', '.join(said if trains else ['everything', *said])}"] if said else []
    return lines


def _few(numbers: Sequence[int], most: int = 40) -> str:
    """Numbers in a row; of many, the first and the last."""
    if len(numbers) <= most:
        return ", ".join(map(str, numbers))
    return f"{_few(numbers[:5])}, … {_few(numbers[-2:])} ({len(numbers)} in all)"


def _placement_lines(facts: Mapping[str, Any]) -> list[str]:
    """Who trains what, and when; nothing where one rank does it all."""
    if facts["ranks"] == 1:
        return []
    lines = []
    for phase in facts["placement"]:
        first, last = phase["first_epoch"] + 1, phase["first_epoch"] + phase["epochs"]
        who = "; ".join(f"{name} on {_few(ranks)}" for name, ranks in phase["ranks"].items())
        lines.append(f"epochs {first}–{last}: {who}")
    lines = lines if len(lines) <= MOST_PHASES else [*lines[:MOST_PHASES], f"… {len(lines)} phases in all (--json)"]
    return [f"{facts['ranks']} ranks, predicted to be {facts['speed_up']:.2f} × as fast as one:", *lines]


def parts_table(kind: str, names: Mapping[str, str]) -> Table:
    """Settings or methods, of which recipes are made."""
    table = _table("")
    table.add_column(kind, no_wrap=True)
    table.add_column("what it is")
    for name, description in names.items():
        table.add_row(name, escape(description))
    return table


def trials_table(title: str, trials: Sequence[Mapping[str, Any]]) -> Table:
    """The trials of a study, and what each costs on this machine."""
    table = _table(title)
    for column in ("trial", "recipe", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("training", "evaluation", "in all"):
        table.add_column(column, justify="right")
    for trial in trials:
        seconds = (trial[f"{part}_seconds"] for part in ("training", "evaluation", "total"))
        table.add_row(escape(trial["trial"]), trial["recipe"], trial["state"], *map(duration, seconds))
    return table


def machine_table(facts: Mapping[str, Any]) -> Table:
    rows = [(key.replace("_", " "), str(value)) for key, value in facts.items() if not isinstance(value, Mapping)]
    return _pairs("this machine", [*rows, *((f"data: {name}", found) for name, found in facts["data"].items())])


def survey_table(survey: "Survey", fields: Mapping[str, Any]) -> Table:
    """What somebody's images are, and what is proposed for them."""
    counts, validated = survey.counts, fields["validation"]["threats"]
    classes = ", ".join(f"{name} ({count})" for name, count in list(counts.items())[:_CLASSES])
    more = f" and {len(counts) - _CLASSES} more" if len(counts) > _CLASSES else ""
    data, training, model = fields["data"], fields["training"], fields["model"]
    looked_at = f", {survey.looked_at:,} of them looked at" if survey.looked_at < survey.total else ""
    width = f" of width {model['width']}" if "width" in model else ""
    rows = [
        ("images", f"{survey.total:,}{looked_at}"),
        ("training images by class", f"{classes}{more}"),
        ("test images", f"{survey.tests:,}" if survey.tests else "held out of them"),
        ("size", f"{data['size']}×{data['size']}, {'gray' if survey.is_gray else 'colour'}"),
        ("network", f"{model['name']}{width}"),
        ("method", fields["method"]),
        ("threats", ", ".join(validated)),
        ("length", f"{training['epochs']} epochs, batches of {training['batch_size']}"),
    ]
    return _pairs(f"proposed for {survey.root}", rows)


def probe_table(probe: Mapping[str, Any]) -> Table:
    """What a recipe would cost, as measured by the doctor."""
    rows = [
        ("whole run", f"about {duration(probe['total_seconds'])} on {probe['device']}, {probe['threads']} thread(s)"),
        ("of it validation", duration(probe["validation_seconds"])),
        ("cost", f"{probe['cost_in_at']:.2f} × a PGD-10 AT run of the same length"),
        *(("learner", line) for line in _part_lines(probe)),
        *((f"one step of {name}", f"{seconds * 1000:.1f} ms") for name, seconds in probe["step_seconds"].items()),
        ("parameters", f"{probe['parameters']:,}"),
        ("peak memory", f"{probe['peak_memory_mib']:,} MiB"),
    ]
    return _pairs(f"{probe['recipe']} here", rows)


def _with_interval(figure: str, bounds: Sequence[float] | None) -> str:
    return figure if bounds is None else f"{figure} [{bounds[0]:.1f}–{bounds[1]:.1f}]"


def _table(title: str, *, caption: str | None = None) -> Table:
    return Table(
        title=escape(title) or None, title_justify="left", title_style="bold", header_style="bold", caption=caption,
        caption_justify="left",
    )  # fmt: skip


def _pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=escape(title), title_justify="left", title_style="bold", show_header=False)
    for key, value in rows:
        table.add_row(key, escape(value))
    return table


def show(table: Table) -> None:
    """To standard output, wide enough not to be cut in a pipe."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)
    console.print(table)
