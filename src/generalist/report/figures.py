"""One style for all figures, PNG and SVG alike; and the curves of a run."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from generalist.core.files import write_atomically

Records = Sequence[Mapping[str, Any]]
Read = Callable[[Mapping[str, Any]], Mapping[str, float]]

LEARNERS = {
    "linf": "#0072B2", "natural": "#D55E00", "l2": "#009E73", "l1": "#CC79A7", "corrupted": "#E69F00",
    "linf-half": "#56B4E9", "linf-double": "#00395A", "l2-half": "#7CCBB2", "l2-double": "#00503A",
    "l1-half": "#E8BFD5", "l1-double": "#7A2E58", "norms": "#5D3A9B", "extremes": "#8C6D31",
}  # fmt: skip
"""One colour for each learner in the figures of all runs, told apart by everybody; others take what a run leaves."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5D3A9B", "#8C6D31")
"""For series that are no learners: runs, threats."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))  # and where lines lie on each other
GLOBAL, GREY = "#222222", "#8A8A8A"
PAPER: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "legend.fontsize": 9, "figure.titlesize": 10,
    "lines.linewidth": 1.5, "lines.markersize": 3, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.3, "grid.linewidth": 0.5, "legend.frameon": False,
    "figure.dpi": 200, "savefig.dpi": "figure", "svg.hashsalt": "generalist",
}  # fmt: skip
NORMS = {"linf": r"$\ell_\infty$", "l2": r"$\ell_2$", "l1": r"$\ell_1$"}
FEW = 30
"""Up to this many points each is marked."""
PAIRS = 6
"""Of more pairs of learners only the mean and the range are drawn."""
RESET, WEIGHTED = "redistribution", "weighted sum"


@dataclass(frozen=True)
class Style:
    """One look for each name in all figures of a run; every axis shows the whole run."""

    looks: Mapping[str, Mapping[str, Any]]
    epochs: int
    resets: Sequence[int] = ()

    @classmethod
    def of(cls, records: Records) -> "Style":
        learners = list(dict.fromkeys(name for row in records for name in row.get("gamma", {})))
        free = [colour for name, colour in LEARNERS.items() if name not in learners] or [GREY]
        others = [name for name in learners if name not in LEARNERS]
        colours = LEARNERS | {name: free[i % len(free)] for i, name in enumerate(others)}
        looks: dict[str, dict[str, Any]] = {"global": {"color": GLOBAL, "lw": 2.2}}
        looks |= {name: {"color": GLOBAL} for name in ("mean", WEIGHTED)}
        for i, name in enumerate(learners):
            looks[name] = {"color": colours[name], "ls": DASHES[i % len(DASHES)]}
        resets = [row["epoch"] for row in records if row.get("redistributed")]
        return cls(looks, max(row["epoch"] for row in records), resets)

    def look(self, name: str, position: int) -> Mapping[str, Any]:
        """What is of no learner alone is grey, and told apart by its dashes."""
        return self.looks.get(name) or {"color": GREY, "ls": DASHES[position % len(DASHES)], "lw": 1 + position // 4}

    def axes(self, figure: Figure, labels: Sequence[str]) -> list[Axes]:
        axes: list[Axes] = list(figure.subplots(1, len(labels), squeeze=False)[0])
        for axis, label in zip(axes, labels, strict=True):
            axis.set(xlabel="epoch", ylabel=label, xlim=(0, self.epochs * 1.02))
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
            if self.resets:
                across = axis.get_xaxis_transform()
                axis.vlines(self.resets, 0, 1, transform=across, color=GREY, lw=0.6, ls=":", label=RESET, zorder=0)
        return axes

    def lines(self, axis: Axes, rows: Records, read: Read) -> None:
        """One line for each name that `read` finds in any of the rows."""
        for position, name in enumerate(dict.fromkeys(name for row in rows for name in read(row))):
            points = [(row["epoch"], read(row)[name]) for row in rows if name in read(row)]
            marker = "o" if len(rows) <= FEW or len(points) == 1 else None
            label = name.replace("|", " – ")
            axis.plot(*zip(*points, strict=True), label=label, marker=marker, **self.look(name, position))


def draw_run(records: Records, folder: Path, *, title: str, select: str) -> list[Path]:
    """accuracy, loss, gamma, regret and drift over the epochs; those for which there is something to draw.

    The title of the accuracies says their split and by what (`select`) the models of the run were selected.
    """
    epochs = [record for record in records if record["kind"] == "epoch"]
    validations = [record for record in records if record["kind"] == "validation"]
    split = validations[-1]["split"] if validations else ""
    by = f"select: {select}{' (!)' if select == 'test' else ''}"
    drawn = []
    panels: dict[str, tuple[Records, Callable[[Figure, Records, Style], None], str]] = {
        "loss": (epochs, _loss, "loss of the learners on the train split"),
        "gamma": ([row for row in epochs if len(row["gamma"]) > 1], _gamma, "weights in the global learner"),
        "regret": ([row for row in epochs if row["regret"]], _regret, "task regret and the bound of Theorem 1"),
        "drift": ([row for row in epochs if "drift" in row], _drift, "drift of the learners from the global learner"),
        "accuracy": (validations, _accuracy, f"accuracy on the {split} split, {by}"),
    }
    for name, (rows, draw, subtitle) in panels.items():
        if rows:
            with matplotlib.rc_context(PAPER):
                figure = Figure(layout="constrained")
                draw(figure, rows, Style.of([*epochs, *validations]))
                single = len(figure.axes) == 1
                figure.set_size_inches(4.2 if single else 3.1 * len(figure.axes), 3.1)
                figure.suptitle(f"{title}\n{subtitle}" if single else f"{title}: {subtitle}")
                for suffix, content in pictures(figure).items():
                    drawn.append(folder / f"{name}{suffix}")
                    write_atomically(drawn[-1], content)
    return drawn


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend for all that is drawn in any of the axes, below them."""
    drawn: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
    drawn |= {RESET: drawn.pop(RESET)} if RESET in drawn else {}  # after the lines
    columns = min(5 if len(figure.axes) > 1 else 3, len(drawn))
    figure.legend(list(drawn.values()), list(drawn), loc="outside lower center", ncols=columns, handlelength=3)


def _from_zero(axis: Axes) -> None:
    axis.set_ylim(0, 1.05 * axis.get_ylim()[1])


def _loss(figure: Figure, rows: Records, style: Style) -> None:
    (axis,) = style.axes(figure, ["mean loss of the epoch"])
    style.lines(axis, rows, lambda row: {name: means["loss"] for name, means in row["train"].items()})
    _from_zero(axis)
    _legend(figure, [axis])


def _gamma(figure: Figure, rows: Records, style: Style) -> None:
    (axis,) = style.axes(figure, [r"$\gamma$ at the end of the epoch"])
    style.lines(axis, rows, lambda row: row["gamma"])
    drawn = axis.get_lines()
    wider = min(0.8, 3.2 / len(drawn))
    for above, line in enumerate(reversed(drawn)):  # equal weights are common: all of them stay visible
        line.set_linewidth(1.3 + wider * above)
    axis.set_ylim(-0.03, 1.03)
    _legend(figure, [axis])


def _regret(figure: Figure, rows: Records, style: Style) -> None:
    left, right = style.axes(figure, [r"$R_T\,/\,T$", r"bound of Theorem 1, $\delta = 0.05$"])
    style.lines(left, rows, lambda row: {"mean": row["regret"]["mean"], **row["regret"]["tasks"]})
    style.lines(right, rows, lambda row: {"mean": row["regret"]["bound"]})
    _legend(figure, [left, right])


def _drift(figure: Figure, rows: Records, style: Style) -> None:
    labels = [r"$\Sigma_a\, \gamma_a\, \| \theta_a - \theta_g \|^2$", r"$\| \theta_a - \theta_g \|$"]
    pairs = any(row["drift"]["cosine"] for row in rows)
    first, second, *third = style.axes(figure, [*labels, *([r"cosine of $\theta_a - \theta_g$"] if pairs else [])])
    style.lines(first, rows, lambda row: {WEIGHTED: row["drift"]["term"]})
    style.lines(second, rows, lambda row: row["drift"]["from_global"])
    _from_zero(first)
    _from_zero(second)
    for axis in third:
        _cosines(axis, [row for row in rows if row["drift"]["cosine"]], style)
        axis.set_ylim(-1.05, 1.05)
    _legend(figure, [first, second, *third])


def _cosines(axis: Axes, rows: Records, style: Style) -> None:
    if len({pair for row in rows for pair in row["drift"]["cosine"]}) <= PAIRS:
        style.lines(axis, rows, lambda row: row["drift"]["cosine"])
        return
    values = [list(row["drift"]["cosine"].values()) for row in rows]
    epochs = [row["epoch"] for row in rows]
    axis.plot(epochs, [sum(each) / len(each) for each in values], color=GREY, label="mean of all pairs")
    axis.fill_between(
        epochs, [min(each) for each in values], [max(each) for each in values], color=GREY, alpha=0.25, lw=0,
        label="range of all pairs",
    )  # fmt: skip


def _accuracy(figure: Figure, rows: Records, style: Style) -> None:
    threats = list(
        dict.fromkeys(threat for row in rows for scores in row["models"].values() for threat in scores["robust"])
    )
    axes = style.axes(figure, ["accuracy (%)", *("" for _ in threats)])
    for axis in axes:
        axis.set_ylim(0, 100)
    style.lines(axes[0], rows, lambda row: {name: scores["natural"] for name, scores in row["models"].items()})
    axes[0].set_title("natural")
    for axis, threat in zip(axes[1:], threats, strict=True):
        style.lines(axis, rows, _under(threat))
        axis.set_title(pretty_threat(threat))
    for line in (line for axis in axes for line in axis.get_lines()):
        line.set_clip_on(False)  # 0 and 100 lie on the edge
    _legend(figure, axes)


def _under(threat: str) -> Read:
    return lambda row: {name: scores["robust"][threat] for name, scores in row["models"].items()}


def picture(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a `png` or `svg` file, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def pictures(figure: Figure) -> dict[str, bytes]:
    """The figure by file ending, as PNG and as SVG."""
    return {f".{kind}": picture(figure, kind) for kind in ("png", "svg")}


def pretty_threat(threat: str) -> str:
    """linf:8/255 → ℓ∞, ε = 8/255; what is no threat stays as it is."""
    norm, colon, eps = threat.partition(":")
    if not colon:
        return threat
    return rf"{NORMS.get(norm, norm)}, $\epsilon$ = {eps}"
