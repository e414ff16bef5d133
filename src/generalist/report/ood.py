"""Accuracy out of distribution: tables, and a heat map of corruptions by severity."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from generalist.data.corruptions import COMMON, LEVELS
from generalist.data.corruptions.sequences import COMMON_SEQUENCES
from generalist.report.figures import PAPER as STYLE
from generalist.report.figures import picture

SUMS = {
    "mean at severity 5": "severity5",
    "mean of all severities": "mean",
    "sequences, mean over frames": "sequences_accuracy",
    "flip rate, % of steps": "flip_rate",
}
Records = Mapping[str, Mapping[str, Any]]


def _corruptions(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """The extra ones last."""
    return {**record["corruptions"], **record["extra_corruptions"]}


def _along(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {**record["sequences"], **record["extra_sequences"]}


def readable(name: str) -> str:
    return name.replace("_", " ")


def ood_tables(records: Records) -> list[Table]:
    """Of one model all severities, then its sequences; of several, severity 5 side by side."""
    if len(records) > 1:
        return [_side_by_side(records)]
    ((name, record),) = records.items()
    return [_severities(name, record), _sequences(record)]


def _severities(name: str, record: Mapping[str, Any]) -> Table:
    first = f"{escape(name)}: accuracy (%) under corruptions, {record['images']} test images"
    table = _table(f"{first}, natural {record['natural']:.2f}", record["notes"])
    table.add_column("corruption")
    for head in (*(f"severity {level}" for level in LEVELS), "mean"):
        table.add_column(head, justify="right")
    for place, (corruption, row) in enumerate(_corruptions(record).items(), start=1):
        cells = [f"{value:.2f}" for value in (*row, sum(row) / len(row))]
        style = None if corruption in COMMON else "dim"
        table.add_row(readable(corruption), *cells, style=style, end_section=place == len(record["corruptions"]))
    columns = list(zip(*record["corruptions"].values(), strict=True))
    table.add_section()
    means = [*(f"{sum(column) / len(column):.2f}" for column in columns), f"{record['mean']:.2f}"]
    table.add_row(f"mean of {len(record['corruptions'])}", *means)
    return table


def _sequences(record: Mapping[str, Any]) -> Table:
    table = _table("perturbation sequences: accuracy (%) over the frames, flips in % of the steps", [])
    table.add_column("sequence")
    for head in ("frames", "accuracy", "flip rate"):
        table.add_column(head, justify="right")
    for place, (name, row) in enumerate(_along(record).items(), start=1):
        cells = [str(row["frames"]), f"{row['accuracy']:.2f}", f"{row['flip_rate']:.2f}"]
        style = None if name in COMMON_SEQUENCES else "dim"
        table.add_row(readable(name), *cells, style=style, end_section=place == len(record["sequences"]))
    table.add_section()
    means = (f"{record['sequences_accuracy']:.2f}", f"{record['flip_rate']:.2f}")
    table.add_row(f"mean of {len(record['sequences'])}", "", *means)
    return table


def _side_by_side(records: Records) -> Table:
    images = " or ".join(map(str, sorted({record["images"] for record in records.values()})))
    notes = dict.fromkeys(note for record in records.values() for note in record["notes"])
    table = _table(f"accuracy (%) under corruptions at severity 5, {images} test images", list(notes))
    table.add_column("corruption")
    for name in records:
        table.add_column(escape(name), justify="right")
    table.add_row("none", *(f"{record['natural']:.2f}" for record in records.values()), end_section=True)
    names = list(dict.fromkeys(name for record in records.values() for name in _corruptions(record)))
    for place, corruption in enumerate(names):
        found = [_corruptions(record).get(corruption) for record in records.values()]
        table.add_row(
            readable(corruption), *("–" if row is None else f"{row[-1]:.2f}" for row in found),
            style=None if corruption in COMMON else "dim",
            end_section=place + 1 in (sum(name in COMMON for name in names), len(names)),
        )  # fmt: skip
    for title, key in SUMS.items():
        table.add_row(title, *(f"{record[key]:.2f}" for record in records.values()))
    return table


def _table(title: str, notes: Sequence[str]) -> Table:
    caption = "\n".join(["speckle noise and below: extra, not in the means", *map(escape, notes)])
    return Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", caption=caption,
        caption_justify="left",
    )  # fmt: skip


def draw_ood(records: Records) -> dict[str, bytes]:
    """Of one model severity by severity, of several at severity 5; its sequences beside. PNG and SVG by file ending."""
    several = len(records) > 1
    corruptions = list(dict.fromkeys(name for record in records.values() for name in _corruptions(record)))
    sequences = list(dict.fromkeys(name for record in records.values() for name in _along(record)))
    if several:
        heads, under = list(records), "severity 5"
        cells = [[_at(_corruptions(record), name, -1) for record in records.values()] for name in corruptions]
    else:
        (record,) = records.values()
        heads, under = [str(level) for level in LEVELS], "severity"
        cells = list(_corruptions(record).values())
    frames = [[_at(_along(r), name, "accuracy") for r in records.values()] for name in sequences]
    flips = [[_at(_along(r), name, "flip_rate") for r in records.values()] for name in sequences]
    count = len(records)
    tilted = several and max(map(len, heads)) > 6
    widths = [0.5 * len(heads), 0.5 * count, 0.5 * count]
    with matplotlib.rc_context({**STYLE, "axes.grid": False, "svg.hashsalt": "generalist"}):
        figure = Figure(
            figsize=(5.2 + sum(widths), 0.24 * len(corruptions) + (2.0 if tilted else 1.3)), layout="constrained"
        )
        axes = figure.subplots(1, 3, gridspec_kw={"width_ratios": widths})
        names = list(records) if several else [""]
        image = _heat(axes[0], cells, heads, corruptions, [name in COMMON for name in corruptions])
        axes[0].set(title="corruptions", xlabel=under)
        common = [name in COMMON_SEQUENCES for name in sequences]
        _heat(axes[1], frames, names, sequences, common)
        axes[1].set(title="sequences", xlabel="accuracy")
        _heat(axes[2], flips, names, [""] * len(sequences), common, digits=1, cmap="Oranges", top=20)
        axes[2].set(xlabel="flip rate (%)")
        if tilted:
            for axis in axes:
                axis.tick_params(axis="x", rotation=90)
        figure.colorbar(image, ax=list(axes), label="accuracy (%)", shrink=0.7)
        figure.suptitle(_title(records))
        return {f".{kind}": picture(figure, kind) for kind in ("png", "svg")}


def _title(records: Records) -> str:
    images = " or ".join(map(str, sorted({record["images"] for record in records.values()})))
    if len(records) > 1:
        return f"accuracy (%) out of distribution: {images} images of the test split"
    ((name, record),) = records.items()
    figures = f"natural {record['natural']:.1f}, severity 5 {record['severity5']:.1f}, all {record['mean']:.1f}"
    return f"{name}: {images} images of the test split\n{figures} %"


def _at(rows: Mapping[str, Any], name: str, place: Any) -> float:
    return rows[name][place] if name in rows else float("nan")


def _heat(
    axis: Axes, cells: Sequence[Sequence[float]], heads: Sequence[str], names: Sequence[str], common: Sequence[bool],
    *, digits: int = 0, cmap: str = "Blues", top: float = 100,
) -> Any:  # fmt: skip
    """A number in every cell; the extra rows below a line."""
    grid = np.array(cells, dtype=float)
    image = axis.imshow(grid, cmap=cmap, vmin=0, vmax=top, aspect="auto")
    axis.set_xticks(range(len(heads)), heads)
    axis.set_yticks(range(len(names)), [readable(name) for name in names])
    axis.tick_params(length=0)
    if not all(common):
        axis.axhline(sum(common) - 0.5, color="#222222", lw=1)
    for row, column in zip(*np.isfinite(grid).nonzero(), strict=True):
        ink = "white" if grid[row, column] > 0.55 * top else "#222222"
        axis.text(column, row, f"{grid[row, column]:.{digits}f}", ha="center", va="center", fontsize=7, color=ink)
    return image
