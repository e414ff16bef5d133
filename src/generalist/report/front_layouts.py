"""A comparison of fronts as it is printed and written: plain text, CSV, Markdown."""

import csv
import io
from collections.abc import Callable, Sequence

from generalist.evaluation.fronts import Dominated, Front, FrontPoint, Spread
from generalist.report.fronts import BEST, FrontComparison, FrontRow
from generalist.report.layouts import MISSING, escape_markdown

MOST_LINES = 20
"""Dominated points that are listed; CSV and JSON have all."""


def caption(found: FrontComparison) -> list[str]:
    """What the figures are, a line each."""
    one = found
    seeds = f"seed{'s' if len(one.seeds) > 1 else ''} {' '.join(map(str, one.seeds))}"
    lines = [
        f"% right of {one.images} {one.split} images of {one.data}; robust: under {one.threat}, suite {one.suite};"
        f" {seeds}"
    ]
    if one.levels:
        lines.append(
            f"at N: robust accuracy at natural accuracy N, linear along the front, {MISSING} where it does not reach"
        )
    several = len(one.seeds) > 1
    if several:
        lines.append("±: standard deviation over seeds; [n]: of so many seeds, where it is not all")
    if one.baselines:
        error = "" if several else "; ±: 95 % interval, paired by image, natural accuracies as measured"
        best = f" ({', '.join(one.baselines)})" if len(one.baselines) > 1 else f" {one.baselines[0]}"
        lines.append(f"in parentheses: gap to the {BEST if len(one.baselines) > 1 else 'baseline'}{best}{error}")
    natural, robust = one.reference
    lines.append(
        f"hypervolume: % of the area above natural {natural:g}, robust {robust:g}; beaten: points that one of another"
        " front dominates (clearly: by more than both 95 % margins)"
    )
    if any(row.cost for row in one.rows):
        mean = "; mean over seeds" if several else ""
        lines.append(f"cost: all trainings of the front, in PGD-10 AT runs of the same length{mean}")
    return [*lines, *one.notes]


def _grid(found: FrontComparison) -> list[list[str]]:
    """The head, and a line per front."""
    costs = any(row.cost for row in found.rows)
    head = ["front", "points", *(f"at {level:g}" for level in found.levels), "hypervolume", "beaten"]
    head += ["cost", "chosen by"] if costs else ["chosen by"]
    lines = [head]
    for row in found.rows:
        levels = [_level(row, place, found) for place in range(len(found.levels))]
        volume = MISSING if row.hypervolume is None else row.hypervolume.text(".2f")
        beaten = f"{row.dominated} of {row.points}" + (f", {row.clearly} clearly" if row.clearly else "")
        cost = [MISSING if row.cost is None else f"{row.cost.mean:.2f}"] if costs else []
        points, beaten = (MISSING, MISSING) if row.name == BEST else (str(row.points), beaten)
        lines.append([row.name, points, *levels, volume, beaten, *cost, ", ".join(row.chosen_by) or MISSING])
    return lines


def _level(row: FrontRow, place: int, found: FrontComparison) -> str:
    """54.3 ± 0.6 (-1.2 ± 0.3)"""
    robust = row.robust[place]
    if robust is None:
        return MISSING
    text = _counted(robust, len(found.seeds))
    gap = row.gaps[place] if row.gaps else None
    if gap is None:
        return text
    margin = row.margins[place]
    by_image = "" if margin is None else f" ± {margin:.1f}"
    return f"{text} ({_counted(gap, len(found.seeds), '+.1f')}{by_image})"


def _counted(values: Spread, seeds: int, form: str = ".1f") -> str:
    return values.text(form) + (f" [{len(values.values)}]" if len(values.values) < seeds else "")


def _beaten(found: FrontComparison) -> list[Dominated]:
    """The points that one of another front dominates, the clearest first."""
    others = [one for one in found.dominated if not one.within]
    return sorted(others, key=lambda one: (not one.clear, -(one.natural.points + one.robust.points)))


def _beaten_line(one: Dominated, seeds: Sequence[int]) -> str:
    point, by = one.point, one.by
    seed = f", seed {one.front.seed}" if len(seeds) > 1 else ""
    figures = " / ".join(f"{value:.1f}" for value in point.pair)
    better = " / ".join(f"{value:.1f}" for value in by.pair)
    ours, theirs = _called(one.front, point), _called(one.by_front, by)
    return (
        f"{ours}{seed} ({figures}) is dominated by {theirs} ({better}):"
        f" natural {one.natural}, robust {one.robust}{', clearly' if one.clear else ''}"
    )


def _called(front: Front, point: FrontPoint) -> str:
    return front.name if point.name == front.name else f"{front.name}: {point.name}"


def plain_text(found: FrontComparison) -> str:
    """Aligned by spaces, then what the figures are, and the points that another front beats."""
    lines = _grid(found)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    last = len(widths) - 1
    table = [
        "  ".join(
            cell.ljust(width) if place in (0, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*table, *caption(found), *_listed(found, lambda text: text)])


def _listed(found: FrontComparison, escaped: Callable[[str], str]) -> list[str]:
    beaten = _beaten(found)
    lines = [escaped(_beaten_line(one, found.seeds)) for one in beaten[:MOST_LINES]]
    more = len(beaten) - MOST_LINES
    return [*lines, f"and {more} more dominated points: --csv and --json have all"] if more > 0 else lines


def markdown_text(found: FrontComparison) -> str:
    """A table with its caption and the dominated points below."""
    head, *lines = _grid(found)
    rules = ["---", *("---:" for _ in head[1:-1]), "---"]
    rows = [[escape_markdown(cell) for cell in line] for line in (head, *lines)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (rows[0], rules, *rows[1:]))
    notes = [*map(escape_markdown, caption(found)), *_listed(found, escape_markdown)]
    return f"{table}\n\n" + "\n".join(f"- {line}" for line in notes) + "\n"


def csv_text(found: FrontComparison) -> str:
    """One row per point, plain numbers; what dominates it with the differences and half their 95 % intervals."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    better = ["by_front", "by", "natural_change", "natural_margin", "robust_change", "robust_margin", "clear"]
    about = ["suite", "threat", "split", "images"]
    writer.writerow([
        "front", "seed", "point", "natural", "robust", "on_front", *better, "chosen_by", "cost_in_at", "seconds",
        "source", *about,
    ])  # fmt: skip
    beaten = {one.point: one for one in found.dominated}
    for front in found.fronts:
        for point in front.points:
            one = beaten.get(point)
            changes: list[object] = [""] * len(better)
            if one is not None:
                natural, robust = one.natural.record(), one.robust.record()
                changes = [one.by_front.name, one.by.name, *natural.values(), *robust.values(), int(one.clear)]
            costs = ["" if value is None else value for value in (point.cost, point.seconds)]
            figures = [round(value, 2) for value in point.pair]
            kept = int(any(point is other for other in front.kept))
            facts = [found.suite, found.threat, found.split, found.images]
            writer.writerow([
                front.name, front.seed, point.name, *figures, kept, *changes, point.chosen_by, *costs, point.source,
                *facts,
            ])  # fmt: skip
    return file.getvalue()
