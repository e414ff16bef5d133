"""A comparison as it is printed and written: plain text, coloured tables, CSV, LaTeX, Markdown."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from generalist.report.comparison import COST, ON_TEST, UNIONS, Column, Comparison, Rank, Row

MISSING = "–"
SELECTED = "selected by"


@dataclass(frozen=True)
class Cell:
    """Our value and the paper's; empty where there is none."""

    own: str
    rank: Rank
    paper: str


def caption(comparison: Comparison, *, best: str, second: str) -> list[str]:
    """What the figures are, how the marks read, and what to beware of; a line each."""
    one = comparison
    unions = f"; {' and '.join(UNIONS)} of {one.robust.attack}" if one.robust.threat in UNIONS else ""
    costs = "; cost: seconds of training" if any(column.name == COST for column in one.columns) else ""
    lines = [f"% right of {one.images} test images of {one.data}, suite {one.suite}{unions}{costs}"]
    if len(one.rows) > 1:
        lines.append(f"{best} best of the column, {second} second best; ties share a mark")
    if any(row.paper for row in _rows(one)):
        alone = "; rows without figures of ours are the paper's alone" if one.paper_rows else ""
        lines.append(f"in parentheses: {one.paper}{alone}")
    return [*lines, *one.notes]


def show_comparison(comparison: Comparison) -> None:
    """To standard output: colours in a terminal, plain text elsewhere."""
    console = Console()
    if not console.is_terminal:
        print(plain_text(comparison))
        return
    for table in terminal_tables(comparison, width=console.width):
        console.print(table)
    for line in caption(comparison, best="bold green:", second="underlined:"):
        style = "bold red" if line.startswith("warning: ") else "dim"
        console.print(escape(line), style=style, highlight=False, soft_wrap=True)


def plain_text(comparison: Comparison) -> str:
    """Aligned by spaces, the marks as signs after the figures."""
    columns = [
        ["run", *(row.name for row in _rows(comparison))],
        *([column.name, *_plain_cells(comparison, column)] for column in comparison.columns),
        [SELECTED, *(row.selected or "paper only" for row in _rows(comparison))],
    ]
    widths = [max(map(len, column)) for column in columns]
    last = len(columns) - 1
    lines = [
        "  ".join(
            text.ljust(width) if place in (0, last) else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in zip(*columns, strict=True)
    ]
    return "\n".join([*lines, *caption(comparison, best="*", second="+")])


def _plain_cells(comparison: Comparison, column: Column) -> list[str]:
    cells = _cells(comparison, column)
    marked, wide = any(cell.rank for cell in cells), max(len(cell.paper) for cell in cells)
    texts = []
    for cell in cells:
        own = cell.own + (" *+"[cell.rank] if marked else "")
        texts.append(f"{own} {_beside(cell, wide)}" if wide else own)
    return texts


def terminal_tables(comparison: Comparison, *, width: int) -> list[Table]:
    """Coloured; as many tables one below the other as the width makes necessary."""
    rows = _rows(comparison)
    contents = {column: _terminal_cells(comparison, column) for column in comparison.columns}
    name_width = max(len(row.name) for row in rows) + 4
    selected_width = len(SELECTED) + 3
    groups: list[list[Column]] = [[]]
    room = width - name_width - selected_width
    for column, cells in contents.items():
        needed = 3 + max(*(len(part) for part in _heading(column).split("\n")), *(len(plain) for plain, _ in cells))
        if needed > room and groups[-1]:
            groups.append([])
            room = width - name_width
        groups[-1].append(column)
        room -= needed
    return [
        _terminal_table(rows, {column: contents[column] for column in group}, selected=group is groups[0])
        for group in groups
    ]


def _terminal_table(rows: Sequence[Row], contents: Mapping[Column, list[tuple[str, str]]], *, selected: bool) -> Table:
    table = Table(header_style="bold")
    table.add_column("run", no_wrap=True)
    for column in contents:
        table.add_column(_heading(column), justify="right", no_wrap=True)
    if selected:
        table.add_column(SELECTED)
    for place, row in enumerate(rows):
        by = f"[bold red]{ON_TEST}[/]" if row.selected == ON_TEST else row.selected or "paper only"
        line = [escape(row.name), *(cells[place][1] for cells in contents.values()), *([by] if selected else [])]
        following = rows[place + 1] if place + 1 < len(rows) else row
        table.add_row(*line, style=None if row.run else "dim", end_section=bool(row.run) and not following.run)
    return table


def _heading(column: Column) -> str:
    return f"{column.attack}\n{column.threat}" if column.attack and column.threat not in UNIONS else column.name


def _terminal_cells(comparison: Comparison, column: Column) -> list[tuple[str, str]]:
    """Each as plain text, which has its width, and with its colours."""
    styles = ("{}", "[bold green]{}[/]", "[underline]{}[/]")
    cells = _cells(comparison, column)
    wide = max(len(cell.paper) for cell in cells)
    found = []
    for cell in cells:
        own = styles[cell.rank].format(cell.own) if cell.own else ""
        beside = _beside(cell, wide)
        found.append((f"{cell.own} {beside}".strip(), f"{own} [dim]{beside}[/]" if beside else own))
    return found


def _beside(cell: Cell, wide: int) -> str:
    """The paper's value, or a dash as wide, so that ours stay aligned."""
    return f"({cell.paper or MISSING:>{wide}})" if wide else ""


def csv_text(comparison: Comparison) -> str:
    """One row a run, plain numbers; the paper's in columns of their own, where it has any."""
    names = [column.name for column in comparison.columns]
    papers = [name for name in names if any(name in row.paper for row in comparison.rows)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "recipe", "method", "folder", *names, "selected_by", *(f"paper:{name}" for name in papers)])
    for row in comparison.rows:
        ours, theirs = [row.values.get(name, "") for name in names], [row.paper.get(name, "") for name in papers]
        writer.writerow([row.name, row.recipe, row.method or "", row.run, *ours, row.selected_by, *theirs])
    return file.getvalue()


def latex_text(comparison: Comparison) -> str:
    """A tabular for booktabs."""
    styles = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
    heads = ["run", *(column.name for column in comparison.columns), SELECTED]
    grid = [[escape_latex(head) for head in heads], *_written(comparison, styles, escape_latex)]
    lines = [f"{' & '.join(line)} \\\\" for line in grid]
    ours = len(comparison.rows) + 1
    return "\n".join(
        [
            *(f"% {line}" for line in caption(comparison, best="bold:", second="underlined:")),
            rf"\begin{{tabular}}{{l{'r' * len(comparison.columns)}l}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:ours],
            *([r"\midrule", *lines[ours:]] if comparison.paper_rows else []),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def markdown_text(comparison: Comparison) -> str:
    """A table with its caption below."""
    heads = ["run", *(column.name for column in comparison.columns), SELECTED]
    lines = [
        [escape_markdown(head) for head in heads],
        ["---", *("---:" for _ in comparison.columns), "---"],
        *_written(comparison, ("{}", "**{}**", "<u>{}</u>"), escape_markdown),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {escape_markdown(line)}" for line in caption(comparison, best="Bold:", second="underlined:"))
    return f"{table}\n\n{notes}\n"


def _written(comparison: Comparison, styles: tuple[str, ...], escaped: Callable[[str], str]) -> list[list[str]]:
    """The rows of a document: marks by `styles`, the paper's values in parentheses."""
    lines = [[escaped(row.name)] for row in _rows(comparison)]
    for column in comparison.columns:
        for line, cell in zip(lines, _cells(comparison, column), strict=True):
            own = styles[cell.rank].format(cell.own) if cell.own else ""
            line.append(" ".join(part for part in (own, f"({cell.paper})" if cell.paper else "") if part))
    for line, row in zip(lines, _rows(comparison), strict=True):
        line.append(escaped(row.selected or "paper only"))
    return lines


def _rows(comparison: Comparison) -> tuple[Row, ...]:
    return (*comparison.rows, *comparison.paper_rows)


def _cells(comparison: Comparison, column: Column) -> list[Cell]:
    def shown(value: float | None, absent: str) -> str:
        return absent if value is None else column.show(value)

    name, ranks = column.name, comparison.ranks(column)
    ours = [
        Cell(shown(row.values.get(name), MISSING), rank, shown(row.paper.get(name), ""))
        for row, rank in zip(comparison.rows, ranks, strict=True)
    ]
    return [*ours, *(Cell("", 0, shown(row.paper.get(name), "")) for row in comparison.paper_rows)]


LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--",
    "[": "{[}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(char, char) for char in text)


def escape_markdown(text: str) -> str:
    """Nothing in a name is taken for markup."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|" else char for char in text)
