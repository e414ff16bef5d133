"""Several models class by class (Generalist++ Fig. 7): plain text, CSV, LaTeX, Markdown and grouped bars."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generalist.core.names import UNION
from generalist.evaluation.classwise import Classwise, changes, payers
from generalist.evaluation.tradeoff import NATURAL
from generalist.report.comparison import ranks
from generalist.report.layouts import MISSING, escape_latex, escape_markdown

ALL = "all"


@dataclass(frozen=True)
class ClassComparison:
    """Runs by name, judged on the same images: `runs[name]` has the verdicts with their classes."""

    data: str
    suite: str
    runs: Mapping[str, Classwise]

    @property
    def first(self) -> Classwise:
        return next(iter(self.runs.values()))

    def heading(self, measure: str) -> str:
        """What a measure is called: natural, or with its column of the suite."""
        return measure if measure == NATURAL else f"{self.first.column} {measure}"

    def caption(self) -> list[str]:
        """What the figures are, and which classes pay for others, a line each."""
        one = self.first
        lines = [f"% right by class of {len(one.labels)} test images of {self.data}, suite {self.suite}"]
        if len(self.runs) == 2:
            lines.append("Δ: second run less the first, ± 95 % interval (paired, normal approximation)")
        (base, before), *others = self.runs.items()
        for name, after in others:
            gain = after.overall(one.robust) - before.overall(one.robust)
            paid = [f"{one.classes[label]} ({change})" for label, change in payers(after, before, one.robust)]
            lost = ", ".join(paid) or "none beyond chance"
            lines.append(
                f"{self.heading(one.robust)}, {name} against {base}: {gain:+.1f} in all; classes that lose: {lost}"
            )
        return lines

    def record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        (_, before), *others = self.runs.items()
        changed = {
            name: {
                measure: [None if one is None else one.record() for one in changes(after, before, measure)]
                for measure in self.first.measures
            }
            for name, after in others
        }
        return {
            "data": self.data,
            "suite": self.suite,
            "column": self.first.column,
            "classes": list(self.first.classes),
            "runs": {name: one.record() for name, one in self.runs.items()},
            "change_from_first": changed,
            "notes": self.caption()[1:],
        }


def _blocks(found: ClassComparison, styles: Sequence[str]) -> dict[str, list[list[str]]]:
    """For each measure the head and a line per class; the best run of a class by the styles (none, best, second)."""
    one, runs = found.first, list(found.runs.values())
    both = len(runs) == 2
    blocks = {}
    for measure in one.measures:
        lines = [["class", "images", *found.runs, *(["Δ"] if both else [])]]
        values = [run.accuracy(measure).tolist() for run in runs]
        differing = changes(runs[1], runs[0], measure) if both else []
        for label, name in enumerate(one.classes):
            cells = [None if math.isnan(row[label]) else row[label] for row in values]
            change = [MISSING if differing[label] is None else str(differing[label])] if both else []
            lines.append([name, str(one.counts[label]), *_marked(cells, styles), *change])
        overall = _marked([run.overall(measure) for run in runs], styles)
        lines.append([ALL, str(len(one.labels)), *overall, *([""] if both else [])])
        blocks[found.heading(measure)] = lines
    return blocks


def _marked(values: Sequence[float | None], styles: Sequence[str]) -> list[str]:
    return [
        MISSING if value is None else styles[rank].format(f"{value:.2f}")
        for value, rank in zip(values, ranks(values), strict=True)
    ]


def plain_text(found: ClassComparison) -> str:
    """One table for each measure, aligned by spaces."""
    styles = ("{} ", "{}*", "{}+") if len(found.runs) > 1 else ("{}", "{}", "{}")
    text = []
    for heading, lines in _blocks(found, styles).items():
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text.append(heading)
        for line in lines:
            cells = [
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            text.append("  ".join(cells).rstrip())
        text.append("")
    marks = ["* best of the class, + second best; ties share a mark"] if len(found.runs) > 1 else []
    return "\n".join([*text, *found.caption(), *marks])


def show_comparison(found: ClassComparison) -> None:
    """To standard output."""
    print(plain_text(found))


def csv_text(found: ClassComparison) -> str:
    """One row per run and class, plain numbers; the class `all` is all images."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    one = found.first
    writer.writerow(["run", "label", "class", "images", *map(found.heading, one.measures)])
    for name, run in found.runs.items():
        columns = [run.accuracy(measure).tolist() for measure in one.measures]
        for label, shown in enumerate(one.classes):
            values = ["" if math.isnan(column[label]) else round(column[label], 2) for column in columns]
            writer.writerow([name, label, shown, one.counts[label], *values])
        writer.writerow([name, "", ALL, len(one.labels), *(round(run.overall(m), 2) for m in one.measures)])
    return file.getvalue()


def _written(
    found: ClassComparison, styles: Sequence[str], escaped: Callable[[str], str]
) -> dict[str, list[list[str]]]:
    """The blocks of a document: names escaped, marks by the styles."""
    blocks = _blocks(found, styles)
    return {
        heading: [[escaped(cell) for cell in lines[0]], *([escaped(line[0]), *line[1:]] for line in lines[1:])]
        for heading, lines in blocks.items()
    }


def latex_text(found: ClassComparison) -> str:
    """A tabular for booktabs, the measures one below the other."""
    blocks = _written(found, ("{}", r"\textbf{{{}}}", r"\underline{{{}}}"), escape_latex)
    width = len(next(iter(blocks.values()))[0])
    body = []
    for heading, lines in blocks.items():
        body += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{{escape_latex(heading)}}} \\", r"\midrule"]
        body += [_symbols(" & ".join(line)) + r" \\" for line in lines[1:]]
    head = _symbols(" & ".join(next(iter(blocks.values()))[0]))
    return "\n".join(
        [
            *(f"% {line}" for line in [*found.caption(), "bold: best of the class, underlined: second best"]),
            rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
            r"\toprule",
            rf"{head} \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _symbols(text: str) -> str:
    return text.replace("Δ", r"$\Delta$").replace("±", r"$\pm$").replace(MISSING, "--")


def markdown_text(found: ClassComparison) -> str:
    """A table for each measure, with the caption below."""
    parts = []
    for heading, lines in _written(found, ("{}", "**{}**", "<u>{}</u>"), escape_markdown).items():
        rule = ["---", *("---:" for _ in lines[0][1:])]
        table = "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])
        parts.append(f"**{escape_markdown(heading)}**\n\n{table}\n")
    notes = "\n".join(f"- {escape_markdown(line)}" for line in found.caption())
    return "\n".join([*parts, f"{notes}\n"])


def draw_classes(found: ClassComparison, *, kind: str = "png") -> bytes:
    """Grouped bars, a panel for each measure and a bar for each run; `kind` is png or svg."""
    from generalist.report.figures import PALETTE, pretty_threat

    panels = {
        pretty_threat(measure): {name: run.accuracy(measure).tolist() for name, run in found.runs.items()}
        for measure in found.first.measures
    }
    title = f"{found.data}, {len(found.first.labels)} images of the test split, {found.first.column}"
    colours = [PALETTE[place % len(PALETTE)] for place in range(len(found.runs))]
    return draw_bars(found.first.classes, panels, colours, title=title, kind=kind)


def draw_one(classwise: Classwise, *, title: str, kind: str = "png") -> bytes:
    """Grouped bars of one model: natural accuracy and that under each threat side by side."""
    from generalist.report.figures import LEARNERS, PALETTE, pretty_threat

    shown = [measure for measure in classwise.measures if measure != UNION]
    norms = [measure.partition(":")[0] for measure in shown]
    own = [LEARNERS[norm] for norm in norms]
    colours = own if len(set(norms)) == len(norms) else [PALETTE[place % len(PALETTE)] for place in range(len(shown))]
    series = {pretty_threat(measure): classwise.accuracy(measure).tolist() for measure in shown}
    return draw_bars(classwise.classes, {"": series}, colours, title=title, kind=kind)


def draw_bars(
    classes: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    colours: Sequence[str],
    *,
    title: str,
    kind: str,
) -> bytes:
    """A panel below the other, groups of bars by class; a class without images has none."""
    import matplotlib
    from matplotlib.figure import Figure

    from generalist.report.figures import PAPER, picture

    names = list(next(iter(panels.values())))
    wide = min(24.0, max(5.2, 0.16 * len(classes) * (len(names) + 1) + 1))
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(wide, 1.0 + 1.75 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for axis, (heading, series) in zip(axes, panels.items(), strict=True):
            for place, (name, values) in enumerate(series.items()):
                shift = (place - (len(series) - 1) / 2) * 0.8 / len(series)
                heights = [0.0 if math.isnan(value) else value for value in values]
                axis.bar(
                    [label + shift for label in range(len(classes))], heights, width=0.8 / len(series), label=name,
                    color=colours[place],
                )  # fmt: skip
            axis.set(ylim=(0, 100), ylabel="accuracy (%)", title=heading, xlim=(-0.6, len(classes) - 0.4))
            axis.set_axisbelow(True)
            axis.grid(axis="x", visible=False)
        long = sum(map(len, classes)) > 9 * wide
        axes[-1].set_xticks(range(len(classes)), classes, rotation=45 if long else 0, ha="right" if long else "center")
        axes[-1].set_xlabel("class")
        figure.suptitle(title)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(names)))
        return picture(figure, kind)
