"""Trade-offs compared as fronts: swept baselines, the printed Generalist-D, and the dial of late learners.

    OMP_NUM_THREADS=1 python benchmarks/fronts.py fashion-mnist-mini --seeds 0 1 2 --out runs/fronts

Every training, dial and attack is kept below --out and goes on where it stopped; run it again for the tables. All
methods have the same epochs, the same data and a running average. The points of a dial are chosen on validation; then
every model is attacked on the first --images of the test split, once, under the first threat (ℓ∞), by PGD-20 and by
`quick` (APGD-CE and APGD-T).
Compared is the robust accuracy at natural accuracies between AT and half-half, interpolated along each front.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import generalist
from generalist import Run
from generalist.core.files import write_json
from generalist.runs.experiment import load_data

BETA, THREAT = "learners.linf.objective.beta", "learners.linf.objective.threat"
SWEEPS: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "AT, ε swept": {"at": ("at", {}), "at-eps75": ("at", {"times": 3}), "at-eps50": ("at", {"times": 2})},
    "half-half, β swept": {"half50": ("half", {}), "half25": ("half", {BETA: 0.25})},
    "TRADES, β swept": {"trades3": ("trades", {BETA: 3}), "trades1": ("trades", {BETA: 1})},
    "Generalist-D as printed": {"printed-d": ("generalist-d-natural", {})},
    "NT": {"nt": ("nt", {})},
}
BASELINES = ("AT, ε swept", "half-half, β swept", "TRADES, β swept")
LATE = {"late-half": "generalist-late-half", "late-d": "generalist-late-d"}
SHARES = (0.25, 0.5, 0.75)
"""Where fronts are compared: so much of the way in natural accuracy from AT to half-half."""


@dataclass(frozen=True)
class Point:
    """One model on the test split, in percent; `robust` per suite, under the first threat."""

    name: str
    natural: float
    robust: Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/fronts"))
    parser.add_argument("--images", type=int, default=1000, help="of the test split")
    parser.add_argument("--suites", nargs="+", default=["pgd20", "quick"])
    parser.add_argument("--beyond", default="2")
    parser.add_argument("--by", nargs="+", default=["learner", "module"])
    parser.add_argument("--exported", type=int, default=6, help="points of a dial's front that are attacked")
    parser.add_argument("--late", nargs="+", default=list(LATE), choices=list(LATE))
    options = parser.parse_args()
    fronts = {seed: fronts_of(seed, options) for seed in options.seeds}
    record = {
        str(seed): {name: [asdict(point) for point in points] for name, points in found.items()}
        for seed, found in fronts.items()
    }
    write_json(options.out / options.setting / "fronts.json", record)
    for suite in options.suites:
        print(f"\n{options.setting}, {suite}, first {options.images} test images, seeds {options.seeds}")
        print(table(fronts, suite))


def fronts_of(seed: int, options: argparse.Namespace) -> dict[str, list[Point]]:
    """All fronts of one seed; what is not trained or attacked yet is."""
    found = {}
    for title, runs in SWEEPS.items():
        found[title] = [baseline(name, method, changes, seed, options) for name, (method, changes) in runs.items()]
    for name in options.late:
        run = trained(name, LATE[name], {}, seed, options)
        for by in options.by:
            found[f"{LATE[name]}, dial by {by}"] = list(dialled(run, by, options))
    return found


def trained(name: str, method: str, changes: Mapping[str, Any], seed: int, options: argparse.Namespace) -> Run:
    changes = dict(changes)
    if "times" in changes:  # a smaller radius: 3 quarters or 2 quarters
        recipe = generalist.load_recipe(f"{options.setting}-{method}")
        threat = recipe.learners["linf"].objective.options["threat"]
        changes = {THREAT: f"{threat.norm}:{threat.eps * Fraction(changes['times'], 4)}"}
    overrides = {"select": "last", "seed": seed, **changes}
    out = options.out / options.setting / f"{name}-s{seed}"
    return generalist.train(
        f"{options.setting}-{method}", out=out, overrides=overrides, resume=out.exists(), progress=True
    )


def baseline(name: str, method: str, changes: Mapping[str, Any], seed: int, options: argparse.Namespace) -> Point:
    run = trained(name, method, changes, seed, options)
    threats = [str(generalist.load_recipe(f"{options.setting}-at").validation.threats[0])]
    records = {suite: attacked(run, threats, suite, options) for suite in options.suites}
    return point(name, records, threats[0])


def attacked(run: Run, threats: Sequence[str], suite: str, options: argparse.Namespace) -> dict[str, Any]:
    if run.record_file(suite).is_file():
        kept = run.record(suite)
        if kept["images"] == options.images and [name for name in kept["per_image"] if name != "natural"] == threats:
            return kept
    return generalist.evaluate(run, threats=threats, suite=suite, images=options.images, progress=True).record()


def dialled(run: Run, by: str, options: argparse.Namespace) -> Iterator[Point]:
    """The front of a dial, thinned out evenly in natural accuracy, on the test split."""
    found = generalist.dial(run, by=by, beyond=options.beyond, progress=True)
    test = load_data(run.recipe).test
    for chosen in thinned(found.front, options.exported):
        model = found.model(chosen)
        records = {
            suite: generalist.evaluate(
                model, test, threats=found.threats[0], suite=suite, images=options.images, cache=run.evaluations,
                progress=True,
            ).record()
            for suite in options.suites
        }  # fmt: skip
        yield point(str(chosen.mixture), records, found.threats[0])


def thinned(front: Sequence[Any], count: int) -> list[Any]:
    if len(front) <= count:
        return list(front)
    low, high = front[0].natural, front[-1].natural
    wanted = [low + (high - low) * index / (count - 1) for index in range(count)]
    return list(dict.fromkeys(min(front, key=lambda p, at=at: abs(p.natural - at)) for at in wanted))


def point(name: str, records: Mapping[str, Mapping[str, Any]], threat: str) -> Point:
    robust = {suite: min(record["accuracy"][threat].values()) for suite, record in records.items()}
    return Point(name, next(iter(records.values()))["natural"], robust)


def robust_at(points: Sequence[Point], natural: float, suite: str) -> float | None:
    """Along the front: linear between the points that no other dominates; None beyond its natural end.

    Left of the least natural point of the front its robust accuracy counts: a model that is better in both is no loss.
    """
    pairs = sorted((p.natural, p.robust[suite]) for p in points)
    front = [(n, r) for n, r in pairs if not any(b >= n and c >= r and (b, c) != (n, r) for b, c in pairs)]
    if natural > front[-1][0]:
        return None
    if natural <= front[0][0]:
        return front[0][1]
    for (n0, r0), (n1, r1) in pairwise(front):
        if natural <= n1:
            return r0 + (r1 - r0) * (natural - n0) / (n1 - n0)
    return None


def table(fronts: Mapping[int, Mapping[str, list[Point]]], suite: str) -> str:
    """Robust accuracy at three natural accuracies (mean ± sd over seeds), and against the best swept baseline."""
    names = list(next(iter(fronts.values())))
    rows = []
    for name in [*names, "best of the swept baselines"]:
        cells = []
        for share in SHARES:
            values = [_compared(found, name, share, suite) for found in fronts.values()]
            known = [value for value in values if value is not None]
            cells.append(_spread([value for value, _ in known]) + f" ({_spread([gap for _, gap in known], '+')})")
        rows.append([name, *cells])
    levels = {seed: _levels(found) for seed, found in fronts.items()}
    at = [f"{statistics.mean(level[i] for level in levels.values()):.1f}" for i in range(len(SHARES))]
    head = ["robust at natural (gap to the best baseline)", *at]
    lines = [head, ["---"] * len(head), *rows]
    points = [
        f"  seed {seed}  {name}: " + ", ".join(f"{p.natural:.1f}/{p.robust[suite]:.1f}" for p in found[name])
        for seed, found in fronts.items()
        for name in names
    ]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + [""] + points)


def _levels(found: Mapping[str, list[Point]]) -> list[float]:
    start, end = found["AT, ε swept"][0].natural, found["half-half, β swept"][0].natural
    return [start + share * (end - start) for share in SHARES]


def _compared(found: Mapping[str, list[Point]], name: str, share: float, suite: str) -> tuple[float, float] | None:
    natural = _levels(found)[SHARES.index(share)]
    every = [p for title in BASELINES for p in found[title]]
    best = robust_at(every, natural, suite)
    ours = best if name not in found else robust_at(found[name], natural, suite)
    return None if ours is None or best is None else (ours, ours - best)


def _spread(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{spread}"


if __name__ == "__main__":
    main()
