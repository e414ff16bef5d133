"""The curves of a run as PNG files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Records = Sequence[Mapping[str, Any]]
Read = Callable[[Mapping[str, Any]], Mapping[str, float]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")  # told apart by everybody
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))  # and where lines lie on each other
GLOBAL = "#222222"
PAPER: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "legend.fontsize": 9, "figure.titlesize": 10,
    "lines.linewidth": 1.5, "lines.markersize": 3, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.3, "grid.linewidth": 0.5, "legend.frameon": False,
}  # fmt: skip
NORMS = {"linf": r"$\ell_\infty$", "l2": r"$\ell_2$", "l1": r"$\ell_1$"}
FEW = 30
"""Up to this many points each is marked."""


@dataclass(frozen=True)
class Style:
    """One look for each name in all figures of a run; every axis shows the whole run."""

    looks: Mapping[str, Mapping[str, Any]]
    epochs: int

    @classmethod
    def of(cls, records: Records) -> "Style":
        learners = dict.fromkeys(name for row in records for name in row.get("gamma", {}))
        looks: dict[str, dict[str, Any]] = {"global": {"color": GLOBAL, "lw": 2.2}, "mean": {"color": GLOBAL}}
        for i, name in enumerate(learners):
            looks[name] = {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)]}
        return cls(looks, max(row["epoch"] for row in records))

    def look(self, name: str, position: int) -> Mapping[str, Any]:
        return self.looks.get(name) or {"color": COLOURS[(position + 3) % len(COLOURS)]}

    def axes(self, figure: Figure, labels: Sequence[str]) -> list[Axes]:
        axes: list[Axes] = list(figure.subplots(1, len(labels), squeeze=False)[0])
        for axis, label in zip(axes, labels, strict=True):
            axis.set(xlabel="epoch", ylabel=label, xlim=(0, self.epochs * 1.02))
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        return axes

    def lines(self, axis: Axes, rows: Records, read: Read) -> None:
        """One line for each name that `read` finds in any of the rows."""
        for position, name in enumerate(dict.fromkeys(name for row in rows for name in read(row))):
            points = [(row["epoch"], read(row)[name]) for row in rows if name in read(row)]
            marker = "o" if len(rows) <= FEW or len(points) == 1 else None
            label = name.replace("|", " – ")
            axis.plot(*zip(*points, strict=True), label=label, marker=marker, **self.look(name, position))


def draw_run(records: Records, folder: Path, *, title: str) -> list[Path]:
    """accuracy, loss, gamma, regret and drift over the epochs; those for which there is something to draw."""
    epochs = [record for record in records if record["kind"] == "epoch"]
    validations = [record for record in records if record["kind"] == "validation"]
    drawn = []
    panels: dict[str, tuple[Records, Callable[[Figure, Records, Style], None], str]] = {
        "loss": (epochs, _loss, "training loss of the learners"),
        "gamma": (epochs, _gamma, "weights of the learners in the global learner"),
        "regret": ([row for row in epochs if row["regret"]], _regret, "task regret and the bound of Theorem 1"),
        "drift": ([row for row in epochs if "drift" in row], _drift, "drift of the learners from the global learner"),
        "accuracy": (validations, _accuracy, "accuracy on the split that selects"),
    }
    for name, (rows, draw, subtitle) in panels.items():
        if rows:
            with matplotlib.rc_context(PAPER):
                figure = Figure(layout="constrained")
                draw(figure, rows, Style.of([*epochs, *validations]))
                single = len(figure.axes) == 1
                figure.set_size_inches(4.2 if single else 3.1 * len(figure.axes), 3.1)
                figure.suptitle(f"{title}\n{subtitle}" if single else f"{title}: {subtitle}")
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / f"{name}.png", dpi=200)
            drawn.append(folder / f"{name}.png")
    return drawn


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend for all the axes, below them."""
    lines = {str(line.get_label()): line for axis in axes for line in axis.get_lines()}
    figure.legend(
        list(lines.values()), list(lines), loc="outside lower center", ncols=min(6, len(lines)), handlelength=3
    )


def _loss(figure: Figure, rows: Records, style: Style) -> None:
    (axis,) = style.axes(figure, ["mean loss of the epoch"])
    style.lines(axis, rows, lambda row: {name: means["loss"] for name, means in row["train"].items()})
    axis.set_ylim(bottom=0)
    _legend(figure, [axis])


def _gamma(figure: Figure, rows: Records, style: Style) -> None:
    (axis,) = style.axes(figure, [r"$\gamma$ at the end of the epoch"])
    style.lines(axis, rows, lambda row: row["gamma"])
    for above, line in enumerate(reversed(axis.get_lines())):  # equal weights are common: all of them stay visible
        line.set_linewidth(1.3 + 0.8 * above)
    axis.set_ylim(-0.03, 1.03)
    _legend(figure, [axis])


def _regret(figure: Figure, rows: Records, style: Style) -> None:
    left, right = style.axes(figure, [r"$R_T\,/\,T$", r"bound of Theorem 1, $\delta = 0.05$"])
    style.lines(left, rows, lambda row: {"mean": row["regret"]["mean"], **row["regret"]["tasks"]})
    style.lines(right, rows, lambda row: {"mean": row["regret"]["bound"]})
    _legend(figure, [left])


def _drift(figure: Figure, rows: Records, style: Style) -> None:
    labels = [r"$\Sigma_a\, \gamma_a\, \| \theta_a - \theta_g \|^2$", r"$\| \theta_a - \theta_g \|$"]
    pairs = any(row["drift"]["cosine"] for row in rows)
    first, second, *third = style.axes(figure, [*labels, *([r"cosine of $\theta_a - \theta_g$"] if pairs else [])])
    style.lines(first, rows, lambda row: {"mean": row["drift"]["term"]})
    style.lines(second, rows, lambda row: row["drift"]["from_global"])
    first.set_ylim(bottom=0)
    second.set_ylim(bottom=0)
    for axis in third:
        style.lines(axis, rows, lambda row: row["drift"]["cosine"])
        axis.set_ylim(-1.05, 1.05)
    _legend(figure, [second, *third])


def _accuracy(figure: Figure, rows: Records, style: Style) -> None:
    threats = list(
        dict.fromkeys(threat for row in rows for scores in row["models"].values() for threat in scores["robust"])
    )
    axes = style.axes(figure, [f"% of the {rows[-1]['split']} split", *("" for _ in threats)])
    style.lines(axes[0], rows, lambda row: {name: scores["natural"] for name, scores in row["models"].items()})
    axes[0].set_title("natural")
    for axis, threat in zip(axes[1:], threats, strict=True):
        style.lines(axis, rows, _under(threat))
        axis.set_title(_pretty(threat))
    _legend(figure, axes)


def _under(threat: str) -> Read:
    return lambda row: {name: scores["robust"][threat] for name, scores in row["models"].items()}


def _pretty(threat: str) -> str:
    """linf:8/255 → ℓ∞, ε = 8/255"""
    norm, _, eps = threat.partition(":")
    return rf"{NORMS.get(norm, norm)}, $\epsilon$ = {eps}"
