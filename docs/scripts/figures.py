"""The figures of the page "How Generalist works", as SVG, from the shipped recipes and the library's own plans.

python docs/scripts/figures.py [FOLDER]     docs/figures if not given
"""

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

import generalist
from generalist.mixing import MixPlan, lattice
from generalist.report.figures import GLOBAL, GREY, LEARNERS, PAPER, picture
from generalist.runs.experiment import build_plan

FOLDER = Path(__file__).parents[1] / "figures"
STEPS_PER_EPOCH = 383  # CIFAR-10, 2 % held out, batches of 128
COLOURS = LEARNERS | {"half": "#56B4E9"}
NAMES = {
    "linf": r"$\ell_\infty$ learner",
    "natural": "natural learner",
    "l2": r"$\ell_2$ learner",
    "half": "half-half learner",
}
PALE, NOTE = "#F3F3F3", "#555555"


def plan_of(method: str) -> MixPlan:
    """The plan of a shipped method in the setting cifar10-resnet18."""
    return build_plan(generalist.load_recipe(f"cifar10-resnet18-{method}"), STEPS_PER_EPOCH)


def draw_learners() -> Figure:
    """One batch, three learners, the global learner, and the way back."""
    figure = Figure(figsize=(7.2, 3.7))
    axis = _blank(figure, (0, 7.2), (0.15, 3.85))
    tasks = {
        "linf": r"attack in $\ell_\infty$, then a step",
        "natural": "a step on clean images",
        "l2": r"attack in $\ell_2$, then a step",
    }
    _box(axis, 0.1, 1.35, 0.95, 0.7, "one batch\nfor all", GREY)
    for place, (name, task) in enumerate(tasks.items()):
        y = 2.45 - 1.05 * place
        _box(axis, 1.7, y, 2.3, 0.75, f"{NAMES[name]}\n{task}", COLOURS[name])
        _arrow(axis, (1.05, 1.7), (1.7, y + 0.37), GREY)
        _arrow(axis, (4.0, y + 0.37), (5.15, 1.7 + 0.25 * (1 - place)), COLOURS[name], width=1.6)
        symbol = {"linf": r"$\gamma_\infty$", "natural": r"$\gamma_{\mathrm{nat}}$", "l2": r"$\gamma_2$"}[name]
        axis.text(4.5, (2.83, 1.86, 0.62)[place], symbol, color=COLOURS[name], ha="center", va="center")
    _box(
        axis,
        5.15,
        1.1,
        1.95,
        1.2,
        "global learner $\\theta_g$\nrunning average of the\nweighted sum of all\nlearners, every step",
        GLOBAL,
    )
    back = FancyArrowPatch(
        (6.3, 2.3), (2.85, 3.2), connectionstyle="arc3,rad=0.32", arrowstyle="-|>", mutation_scale=11, color=GLOBAL,
        lw=1.2, ls=(0, (4, 2)), clip_on=False,
    )  # fmt: skip
    axis.add_patch(back)
    axis.text(5.6, 3.4, "every few epochs:\nall learners become $\\theta_g$", ha="left", va="center", fontsize=8.5)
    axis.text(6.12, 0.98, "the model that is reported", ha="center", va="top", fontsize=8.5, color=GLOBAL)
    return figure


def draw_gamma() -> Figure:
    """γ of the printed Generalist-T, its redistributions, and when each learner is trained."""
    plan = plan_of("generalist-t")
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    epochs = range(plan.epochs + 1)
    widths = {"linf": 2.0, "natural": 3.4, "l2": 1.6}  # natural and ℓ2 have the same weight: both stay visible
    for name in plan.gammas:
        shares = [plan.weights_at(Fraction(epoch, plan.epochs))[name] for epoch in epochs]
        upper.plot(
            epochs, shares, color=COLOURS[name], lw=widths[name], label=NAMES[name], ls="--" if name == "l2" else "-"
        )
    resets = [e for e in range(1, plan.epochs + 1) if plan.redistributes_in(e)]
    for axis in (upper, lower):
        axis.vlines(resets, 0, 1, transform=axis.get_xaxis_transform(), color=GREY, lw=0.7, ls=":", zorder=0)
    upper.plot([], [], color=GREY, lw=0.9, ls=":", label="redistribution")
    upper.set(ylabel=r"weight $\gamma$ in the mixture", ylim=(-0.03, 1.05), xlim=(0, plan.epochs))
    upper.legend(loc="center left", bbox_to_anchor=(0.02, 0.45))
    _bars(lower, plan, list(plan.gammas))
    lower.set(xlabel="epoch")
    return figure


def draw_windows() -> Figure:
    """When the learners of five methods are trained."""
    methods = {
        "generalist-t": "Generalist-T as printed",
        "generalist-late-half": "generalist-late-half",
        "generalist-late-d": "generalist-late-d",
        "generalist-late-t": "generalist-late-t",
    }
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    plans = {title: plan_of(method) for method, title in methods.items()}
    axes = figure.subplots(len(plans), 1, sharex=True, height_ratios=[len(plan.gammas) for plan in plans.values()])
    for axis, (title, plan) in zip(axes, plans.items(), strict=True):
        _bars(axis, plan, list(plan.gammas))
        axis.set_title(title, loc="left", fontsize=9)
    axes[-1].set(xlabel="epoch", xlim=(0, next(iter(plans.values())).epochs))
    return figure


def draw_dial() -> Figure:
    """The mixtures that the dial tries between three learners, inside their triangle and beyond it."""
    figure = Figure(figsize=(7.2, 3.9))
    corners = {"linf": (0.0, 0.0), "natural": (1.0, 0.0), "l2": (0.5, 0.866)}
    axis = _blank(figure, (-0.85, 2.05), (-0.2, 1.2))
    axis.set_aspect("equal")
    axis.add_patch(Polygon(list(corners.values()), closed=True, fc=PALE, ec=GREY, lw=1))
    beyond = Fraction(5, 4)
    edge = [(float(beyond) * x, float(beyond) * y) for x, y in (corners["natural"], corners["l2"])]
    axis.plot(*zip(*edge, strict=True), color=GREY, lw=0.8, ls=(0, (4, 3)))
    for corner, far in zip((corners["natural"], corners["l2"]), edge, strict=True):
        axis.plot(*zip(corner, far, strict=True), color=GREY, lw=0.8, ls=(0, (4, 3)))
    for weights in lattice(list(corners), points=21, beyond=beyond):
        x = sum(weight * corners[name][0] for name, weight in weights.items())
        y = sum(weight * corners[name][1] for name, weight in weights.items())
        pure = (
            next((name for name, weight in weights.items() if weight == 1), None)
            if min(weights.values()) >= 0
            else None
        )
        axis.plot(x, y, "o", color=COLOURS[pure] if pure else GLOBAL, ms=9 if pure else 4.5, zorder=3)
    places = {
        "linf": ((-0.06, -0.07), "right", "top"),
        "natural": ((1.0, -0.07), "center", "top"),
        "l2": ((0.42, 0.93), "right", "bottom"),
    }
    for name, ((x, y), across, up) in places.items():
        axis.text(x, y, NAMES[name], color=COLOURS[name], ha=across, va=up, fontsize=9.5, fontweight="bold")
    axis.text(1.27, 0.5, "beyond the learners\n(--beyond 1.25)", ha="left", va="center", fontsize=8.5, color=NOTE)
    axis.text(-0.02, 0.62, "inside: weights\nfrom 0 to 1", ha="right", va="center", fontsize=8.5, color=NOTE)
    return figure


def draw_bound() -> Figure:
    """What an attack proves: a share of images that are not robust, never one of images that are."""
    figure = Figure(figsize=(7.2, 1.95))
    axis = _blank(figure, (0, 7.2), (0, 1.95))
    axis.add_patch(Rectangle((0.2, 0.75), 6.8, 0.42, fc=PALE, ec="none"))
    axis.add_patch(Rectangle((3.75, 0.75), 3.25, 0.42, fc=LEARNERS["natural"], ec="none", alpha=0.25))
    axis.add_patch(Rectangle((0.2, 0.75), 2.9, 0.42, fc=LEARNERS["l2"], ec="none", alpha=0.25))
    for x, text, side in (
        (6.1, "clean", "center"),
        (5.05, "PGD-20", "center"),
        (4.1, "quick", "left"),
        (3.75, "AutoAttack", "right"),
    ):
        axis.plot([x, x], [0.68, 1.24], color=GLOBAL, lw=1.4)
        axis.text(x + {"left": -0.05, "right": 0.05}.get(side, 0), 1.31, text, ha=side, va="bottom", fontsize=9)
    axis.plot([3.1, 3.1], [0.68, 1.24], color=LEARNERS["l2"], lw=1.4, ls=(0, (3, 2)))
    axis.text(3.1, 0.6, "the true robust accuracy:\nsomewhere here, unknown", ha="center", va="top", fontsize=8.5)
    axis.text(5.4, 0.6, "images for which a wrong answer\nwas found: proven", ha="center", va="top", fontsize=8.5)
    axis.text(0.2, 1.31, "0 %", ha="left", va="bottom", fontsize=9)
    axis.text(7.0, 1.31, "100 %", ha="right", va="bottom", fontsize=9)
    axis.text(1.2, 0.96, "robust", ha="center", va="center", fontsize=9)
    axis.annotate("", (3.78, 1.75), (6.1, 1.75), arrowprops={"arrowstyle": "-|>", "color": GREY})
    axis.text(
        4.95, 1.79, "a stronger attack can only lower the figure", ha="center", va="bottom", fontsize=8.5, color=NOTE
    )
    return figure


def _bars(axis: Axes, plan: MixPlan, names: Sequence[str]) -> None:
    """A bar for the epochs in which a learner is trained, an outline for those in which it is idle."""
    for row, name in enumerate(names):
        epochs = [epoch for epoch in range(plan.epochs) if plan.is_active_in_epoch(name, epoch)]
        first, end = epochs[0], epochs[-1] + 1
        axis.add_patch(Rectangle((first, -row - 0.3), end - first, 0.6, fc=COLOURS[name], ec="none"))
        if first and (plan.windows or {})[name][0] == 0:
            axis.add_patch(Rectangle((0, -row - 0.3), first, 0.6, fc="none", ec=COLOURS[name], lw=0.8, ls=(0, (3, 2))))
            axis.text(first / 2, -row, "idle: not trained", ha="center", va="center", fontsize=8, color=NOTE)
        if end < plan.epochs:
            axis.plot([end, plan.epochs], [-row, -row], color=COLOURS[name], lw=1, ls=":")
            middle = (end + plan.epochs) / 2
            axis.text(middle, -row + 0.06, "kept as it is", ha="center", va="bottom", fontsize=7.5, color=NOTE)
    axis.set_yticks([-row for row in range(len(names))], [NAMES[name] for name in names])
    axis.set_ylim(-len(names) + 0.45, 0.55)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def _blank(figure: Figure, across: tuple[float, float], up: tuple[float, float]) -> Axes:
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=across, ylim=up)
    axis.axis("off")
    return axis


def _box(axis: Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.09", fc="white", ec=colour, lw=1.6
    )
    axis.add_patch(shape)
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, linespacing=1.35)


def _arrow(
    axis: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, *, width: float = 1.0
) -> None:
    axis.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=colour, lw=width, shrinkA=1, shrinkB=1)
    )


FIGURES: dict[str, Callable[[], Figure]] = {
    "learners": draw_learners,
    "gamma": draw_gamma,
    "windows": draw_windows,
    "dial": draw_dial,
    "bound": draw_bound,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(PAPER):
        for name, draw in FIGURES.items():
            (folder / f"{name}.svg").write_bytes(picture(draw(), "svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
