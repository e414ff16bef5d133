"""What each module of a network can give: the measured rows, as a table, as CSV and as a figure."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from generalist.core.files import write_atomically
from generalist.core.names import UNION
from generalist.evaluation.accuracy import Change

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["module", "set", "whole"]
MISSING = "–"
YES = "yes"


@dataclass(frozen=True)
class ModuleRow:
    """What a short natural fine-tuning of these modules alone did, everything else frozen.

    Args:
        name: The module, or the modules with commas between them.
        modules: Their names, as the rows of single modules have them.
        trains: What to write into a learner's `trains`.
        kind: `module`, `set` (several modules that were checked together) or `whole` (the network).
        parameters: How many are trained.
        natural: Change of natural accuracy.
        robust: Change of accuracy under attack, per threat.
        union: Change of the share of images that are right under every threat; with one threat, the same.
        criticality: By how much the adversarial loss can rise when the weights of this module alone are moved; None
            where it was not measured.
        last: Whether these are the last modules of the network, so that the backward pass is short.
    """

    name: str
    modules: tuple[str, ...]
    trains: tuple[str, ...]
    kind: Kind
    parameters: int
    natural: Change
    robust: Mapping[str, Change]
    union: Change
    criticality: float | None
    last: bool

    @property
    def price(self) -> float | None:
        """Robust points lost per natural point gained; None where natural accuracy does not rise."""
        return -self.union.points / self.natural.points if self.natural.points > 0 else None

    def worth(self, rate: float) -> Change:
        """rate · natural points gained − robust points lost: above 0 where the price is below the rate."""
        margin = math.hypot(rate * self.natural.margin, self.union.margin)
        return Change(rate * self.natural.points + self.union.points, margin)

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "trains": list(self.trains),
            "kind": self.kind,
            "parameters": self.parameters,
            "natural": self.natural.record(),
            "robust": {threat: change.record() for threat, change in self.robust.items()},
            "union": self.union.record(),
            "criticality": None if self.criticality is None else round(self.criticality, 6),
            "price": None if self.price is None else round(self.price, 4),
            "last": self.last,
        }


@dataclass(frozen=True)
class ModuleReport:
    """How much natural accuracy each module can give for how much robustness; `print(report)` is a table.

    Args:
        title: Which model of which run or recipe.
        rows: The modules in the order of the network, then the sets that were checked, then the whole network.
        before: Accuracies in % before any fine-tuning: natural, and robust per threat.
        rate: The highest price of a natural point, in robust points, at which modules are proposed.
        chosen: The row that is proposed; None where no price is low enough.
        about: How it was measured: split, images, attack, epochs, lr, seed, and so on.
        files: The report and its figures.
    """

    title: str
    rows: tuple[ModuleRow, ...]
    before: Mapping[str, Any]
    rate: float
    chosen: ModuleRow | None
    about: Mapping[str, Any]
    files: tuple[Path, ...] = ()

    @property
    def proposed(self) -> tuple[str, ...]:
        """What to write into `trains`; empty where no price is low enough."""
        return self.chosen.trains if self.chosen else ()

    def is_proposed(self, row: ModuleRow) -> bool:
        """Whether the row is the proposed one, or a module of it."""
        return self.chosen is not None and (row is self.chosen or row.name in self.chosen.modules)

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "title": self.title,
            "before": dict(self.before),
            "rate": round(self.rate, 4),
            "proposed": list(self.proposed),
            "rows": [{**row.record(), "proposed": self.is_proposed(row)} for row in self.rows],
            "about": dict(self.about),
        }

    def __str__(self) -> str:
        file = io.StringIO()
        Console(file=file, width=1000, color_system=None).print(modules_table(self))
        return "\n".join([*(line.rstrip() for line in file.getvalue().splitlines()), *module_notes(self)])


def modules_table(report: ModuleReport) -> Table:
    """A row per module, then the sets that were checked and the whole network."""
    threats = list(report.before["robust"])
    attack = report.about["attack"]
    was = [f"natural {report.before['natural']:.1f}"]
    was += [f"{attack} {threat} {value:.1f}" for threat, value in report.before["robust"].items()]
    title = f"{report.title}: {report.about['images']} images of the validation split; before: {', '.join(was)}"
    table = Table(title=escape(title), title_justify="left", title_style="bold", header_style="bold")
    table.add_column("module", no_wrap=True)
    robust = [f"{attack} {threat}" for threat in threats] + [UNION] * (len(threats) > 1)
    for head in ("parameters", "Δ natural", *(f"Δ {column}" for column in robust), "criticality", "price"):
        table.add_column(head, justify="right")
    table.add_column("proposed")
    for row, following in zip(report.rows, (*report.rows[1:], None), strict=True):
        mine = report.is_proposed(row)
        cells = [f"{row.parameters:,}", str(row.natural), *(str(row.robust[threat]) for threat in threats)]
        cells += [str(row.union)] * (len(threats) > 1)
        cells.append(MISSING if row.criticality is None else f"{row.criticality:.3f}")
        cells.append(MISSING if row.price is None else f"{row.price:.2f}")
        ends = following is not None and following.kind != row.kind
        table.add_row(
            escape(row.name), *cells, YES if mine else "", style="bold green" if mine else None, end_section=ends
        )
    return table


def module_notes(report: ModuleReport) -> list[str]:
    """How the columns read, and the proposal; a line each."""
    about = report.about
    of = f" ({UNION})" if len(report.before["robust"]) > 1 else ""
    lines = [
        f"Δ in points after {about['epochs']:g} natural epochs (lr {about['lr']:g}) of it alone; ± 95 % interval",
        f"price: robust points{of} lost per natural point gained",
        f"criticality: rise of the adversarial loss when its weights alone move by {about['radius']:.0%}",
    ]
    if report.chosen is None:
        return [*lines, f"nothing is proposed: no module has a price of at most {report.rate:.2f}"]
    worth = report.chosen.worth(report.rate)
    if worth.points < worth.margin:
        lines.append(
            f"beware: at that price the proposal is worth {worth} points, which may be chance; more images tell more"
        )
    return [*lines, f"proposed (price at most {report.rate:.2f}): trains: [{', '.join(report.proposed)}]"]


def csv_text(report: ModuleReport) -> str:
    """One row per row of the table, plain numbers."""
    threats = list(report.before["robust"])
    heads = ["module", "kind", "trains", "parameters", "natural", "natural_margin"]
    heads += [part for robust in (*threats, "union") for part in (robust, f"{robust}_margin")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*heads, "criticality", "price", "proposed"])
    for row in report.rows:
        cells: list[Any] = [row.name, row.kind, " ".join(row.trains), row.parameters]
        for change in (row.natural, *(row.robust[threat] for threat in threats), row.union):
            cells += change.record().values()
        plain = row.record()
        ends = ["" if plain[field] is None else plain[field] for field in ("criticality", "price")]
        writer.writerow([*cells, *ends, YES if report.is_proposed(row) else ""])
    return file.getvalue()


def show_report(report: ModuleReport) -> None:
    """To standard output: colours in a terminal, plain text elsewhere."""
    console = Console()
    if not console.is_terminal:
        print(report)
        return
    console.print(modules_table(report))
    for line in module_notes(report):
        console.print(escape(line), style="dim", highlight=False, soft_wrap=True)


def draw_modules(report: ModuleReport, files: Sequence[Path]) -> None:
    """Natural points gained against robust points lost, a labelled point per row; criticality beside it.

    `files` are named .png or .svg.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from generalist.report.figures import PAPER, pictures

    modules = [row for row in report.rows if row.kind == "module"]
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(8.4, max(4.8, 1.4 + 0.2 * len(modules))), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 1.6))
        right.barh([row.name for row in modules], [row.criticality or 0.0 for row in modules],
                   color=[_colour(report, row) for row in modules])  # fmt: skip
        right.invert_yaxis()
        right.grid(axis="y", visible=False)
        right.set(title="robust criticality", xlabel=f"rise of the loss, weights moved by {report.about['radius']:.0%}")
        figure.suptitle(
            f"{report.title}: {report.about['images']} images of the validation split\n"
            "orange: proposed; hollow: several modules; grey: the whole network"
        )
        _scatter(figure, left, report)
        drawn = pictures(figure)
    for path in files:
        write_atomically(path, drawn[path.suffix])


def _colour(report: ModuleReport, row: ModuleRow) -> str:
    from generalist.report.figures import GREY
    from generalist.report.scatter import GENERALIST, OURS

    return GENERALIST if report.is_proposed(row) else GREY if row.kind == "whole" else OURS


def _scatter(figure: "Figure", axis: "Axes", report: ModuleReport) -> None:
    """The points, their intervals as faint lines, and the rate as a dashed one."""
    from generalist.report.figures import GREY
    from generalist.report.scatter import MARKER, Point, axis_floor, lifted, place_labels

    floor = axis_floor([row.union.points for row in report.rows])
    modules = axis_floor([row.union.points for row in report.rows if row.kind == "module"])
    if modules is not None and modules < 0:  # one dear module and the whole network must not press all others together
        kept = [row.union.points for row in report.rows if row.kind != "whole" and row.union.points > 2.2 * modules]
        floor = 1.1 * min(kept)
    points = []
    for row in report.rows:
        name = f"{row.trains[0]} … {row.trains[-1]}" if row.kind == "set" and len(row.trains) > 3 else row.name
        point = Point(name, row.natural.points, row.union.points, _colour(report, row), hollow=row.kind != "module")
        points.append(point := lifted(point, floor))
        upright = None if point.y == floor else row.union.margin
        axis.errorbar(
            point.x, point.y, xerr=row.natural.margin, yerr=upright, fmt="none", ecolor=point.colour, alpha=0.2, lw=1
        )
        axis.plot(
            point.x, point.y, "v" if point.y == floor else "o", ms=MARKER, mec=point.colour, mew=0.9, clip_on=False,
            mfc="white" if point.hollow else point.colour, zorder=3,
        )  # fmt: skip
    axis.margins(0.12)
    (start, end), (low, high) = axis.get_xlim(), axis.get_ylim()
    axis.set(xlim=(start, end), ylim=(low if floor is None else floor, high))
    axis.axhline(0, color=GREY, lw=0.6, zorder=0)
    axis.axvline(0, color=GREY, lw=0.6, zorder=0)
    axis.plot([0, max(end, 0)], [0, -report.rate * max(end, 0)], color=GREY, lw=0.8, ls=(0, (4, 2)), zorder=0)
    threats = list(report.before["robust"])
    under = UNION if len(threats) > 1 else threats[0]
    axis.set(xlabel="natural points gained", ylabel=f"robust points gained ({report.about['attack']}, {under})")
    axis.set_title(f"each fine-tuned alone; dashed: a price of {report.rate:.2f}")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is placed now must not move the axes again
    place_labels(axis, points, points)
