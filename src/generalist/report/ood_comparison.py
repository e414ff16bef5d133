"""Evaluated runs side by side out of distribution, with table IV of Generalist++ beside them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from generalist.core.errors import UserError
from generalist.core.names import OOD
from generalist.evaluation.ood import OFFICIAL
from generalist.report.comparison import COST, NATURAL, Column, Comparison, Entry, Row, entry_warnings
from generalist.report.paper import PaperTable

COLUMNS = {
    NATURAL: "natural",
    "severity 5": "severity5",
    "all severities": "mean",
    "sequences": "sequences_accuracy",
    "flip rate": "flip_rate",
}
"""A column → the figure of the record that it shows."""
PAPER_COLUMNS = {"severity 5": "c", "sequences": "p"}
"""A column → which of the paper's datasets has it: CIFAR-10-C or CIFAR-10-P."""
MEANING = (
    "severity 5 and all severities: mean over 15 corruptions; sequences: mean over the frames of 10 sequences;"
    " flip rate: % of their steps at which the prediction changes"
)


def make_ood_comparison(entries: Sequence[Entry], *, paper: PaperTable | None = None) -> Comparison:
    """Runs that were evaluated alike, as rows; with a paper's table its values too."""
    check_alike_ood({entry.name: entry.record for entry in entries})
    first = entries[0]
    columns = [Column(name, lower_is_better=name == "flip rate") for name in COLUMNS]
    rows = []
    for entry in entries:
        values = {name: entry.record[key] for name, key in COLUMNS.items()}
        values |= {COST: entry.seconds} if entry.seconds is not None else {}
        methods = _paper_values(paper, entry.data, entry.network)
        beside = next((methods[name] for name in entry.paper_names if name in methods), {})
        rows.append(Row(entry.name, values, beside, entry.recipe, entry.method, entry.run, entry.selected_by))
    if any(entry.seconds is not None for entry in entries):
        columns.append(Column(COST, lower_is_better=True, digits=1))
    return Comparison(
        suite=OOD, data=first.data, images=first.record["images"], threats=(), columns=tuple(columns),
        robust=columns[1], rows=tuple(rows), paper=paper.title if paper else "",
        paper_rows=tuple(_paper_rows(entries, paper)) if paper else (),
        notes=(MEANING, *entry_warnings(entries), *_paper_notes(entries, paper)),
    )  # fmt: skip


def check_alike_ood(records: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse runs whose figures are not about the same images, corruptions and sequences."""
    aspects: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "data": lambda record: record.get("data"),
        "images": lambda record: record["examples"],
        "files": lambda record: record["sources"],
        "corruptions": lambda record: list(record["corruptions"]),
        "sequences": lambda record: list(record["sequences"]),
        "seeds": lambda record: record["seed"],
    }
    (first, one), *others = records.items()
    for name, record in others:
        for what, read in aspects.items():
            if read(one) != read(record):
                raise UserError(f"{first} and {name} were evaluated with different {what}; evaluate them alike")


def _paper_values(paper: PaperTable | None, data: str, network: str | None) -> dict[str, dict[str, float]]:
    """By method of the paper, by our column."""
    found: dict[str, dict[str, float]] = {}
    for column, kind in PAPER_COLUMNS.items() if paper else ():
        for method, metrics in paper.rows.get((f"{data}-{kind}", network or ""), {}).items():  # type: ignore[union-attr]
            found.setdefault(method, {})[column] = metrics["accuracy"]
    return found


def _paper_rows(entries: Sequence[Entry], paper: PaperTable) -> list[Row]:
    """The paper's methods that no run covers, for the networks of the runs."""
    networks = list(dict.fromkeys(entry.network for entry in entries if entry.network))
    rows = []
    for network in networks:
        covered = {name for entry in entries if entry.network == network for name in entry.paper_names}
        for method, values in _paper_values(paper, entries[0].data, network).items():
            if method not in covered:
                rows.append(Row(f"{method}, {network}" if len(networks) > 1 else method, paper=values))
    return rows


def _paper_notes(entries: Sequence[Entry], paper: PaperTable | None) -> list[str]:
    if paper is None:
        return []
    if not any(_paper_values(paper, entry.data, entry.network) for entry in entries):
        return [f"nothing to put beside the runs in {paper.title}: it is about {paper.about()}"]
    drawn = [kind for kind, source in entries[0].record["sources"].items() if source != OFFICIAL]
    return [f"the paper's figures are of the official files; our {' and '.join(drawn)} are drawn"] if drawn else []
