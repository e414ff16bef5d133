"""Trade-offs compared as fronts: swept baselines, the printed Generalist-D, and the dial of late learners.

    OMP_NUM_THREADS=1 python benchmarks/fronts.py fashion-mnist-mini --seeds 0 1 2 --out runs/fronts

Every training, dial and attack is kept below --out and goes on where it stopped. All methods have the same data and a
running average. Every training but NT has as many epochs as make the passes of TRADES in the setting's epochs: AT has a
quarter more of them. What is called `twice` has the passes of two such trainings; a baseline as long tells what the
length alone is worth. The points of a dial are chosen on validation; then every model is attacked on the first --images
of the test split, once, under the first threat (ℓ∞), by PGD-20 and by `quick` (APGD-CE and APGD-T). Costs are in PGD-10
AT runs of the setting's epochs.

What was found is kept below --records, one small file per seed, which needs no run folder any more. The tables are of
all files there: seeds and methods (--only) that were measured at different times, or elsewhere, add up. `--only`
without a name prints them alone. `generalist front FILE…` compares the same files, with figures.
"""

import argparse
import fcntl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import generalist
from generalist import Run
from generalist.evaluation.front_records import JudgedModel, read_front_record
from generalist.recipes.cost import passes
from generalist.recipes.schema import Recipe
from generalist.report.fronts import FrontComparison
from generalist.runs.experiment import build_plan, load_data
from generalist.runs.front import conditions, judged_run

NO_VALIDATION = {"validation.every_epochs": 1000, "validation.images": 100}
"""No checkpoint is selected, so training is not interrupted for validation, which would take a fifth of its time."""
BETA, THREAT = "learners.linf.objective.beta", "learners.linf.objective.threat"
SWEEPS: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "AT, ε swept": {"at": ("at", {}), "at-eps75": ("at", {"quarters": 3}), "at-eps50": ("at", {"quarters": 2})},
    "half-half, β swept": {"half50": ("half", {}), "half25": ("half", {BETA: 0.25})},
    "TRADES, β swept": {"trades3": ("trades", {BETA: 3}), "trades1": ("trades", {BETA: 1})},
    "TRADES, twice the passes": {"trades3-twice": ("trades", {BETA: 3, "twice": True})},
    "half-half, twice the passes": {"half50-twice": ("half", {"twice": True})},
    "Generalist-D as printed": {"printed-d": ("generalist-d-natural", {})},
    "NT": {"nt": ("nt", {})},
}
BASELINES = ("AT, ε swept", "half-half, β swept", "TRADES, β swept")
LATE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "late-half": ("generalist-late-half", {}),
    "late-half-twice": ("generalist-late-half", {"twice": True}),
    "late-d": ("generalist-late-d", {}),
}
"""Runs that are dialled."""
NAMES = [*(name for runs in SWEEPS.values() for name in runs), *LATE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/fronts"))
    parser.add_argument("--records", type=Path, help="one file per seed; OUT/SETTING/records if not given")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=NAMES, help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--images", type=int, default=1000, help="of the test split")
    parser.add_argument("--suites", nargs="+", default=["pgd20", "quick"])
    parser.add_argument("--beyond", default="2")
    parser.add_argument("--points", type=int, default=21, help="of a dial")
    parser.add_argument("--by", nargs="+", default=["learner", "module"])
    parser.add_argument("--exported", type=int, default=6, help="points of a dial's front that are attacked")
    parser.add_argument("--late", nargs="+", default=list(LATE), choices=list(LATE))
    parser.add_argument("--at", type=float, nargs="+", default=[], help="natural accuracies of the tables")
    options = parser.parse_args()
    options.records = options.records or options.out / options.setting / "records"
    try:
        measure(options)
        for found in tables(options.records, options.setting, suites=options.suites, at=options.at):
            print(f"\n{found}")
    except generalist.UserError as error:
        sys.exit(f"error: {error}")


def measure(options: argparse.Namespace) -> None:
    """Train, dial and attack what is wanted and not known yet; each model is kept as soon as it is attacked."""
    wanted = NAMES if options.only is None else options.only
    for seed in options.seeds:
        for group, runs in SWEEPS.items():
            for name, (method, changes) in runs.items():
                if name in wanted:
                    run = trained(name, method, changes, seed, options)
                    found = {suite: attacked(run, suite, options) for suite in options.suites}
                    keep(run, [(name, found)], group, seed, options)
        for name in (name for name in options.late if name in wanted):
            method, changes = LATE[name]
            run = trained(name, method, changes, seed, options)
            for by in options.by:
                group = f"{method}{', twice the passes' if 'twice' in changes else ''}, dial by {by}"
                keep(run, list(dialled(run, by, options)), group, seed, options, dial=True)


def trained(name: str, method: str, changes: Mapping[str, Any], seed: int, options: argparse.Namespace) -> Run:
    changes = dict(changes)
    changes["training.epochs"] = epochs_of(method, options.setting, 2 if changes.pop("twice", False) else 1)
    quarters = changes.pop("quarters", None)
    if quarters is not None:  # a smaller radius
        recipe = generalist.load_recipe(f"{options.setting}-{method}")
        threat = recipe.learners["linf"].objective.options["threat"]
        changes[THREAT] = f"{threat.norm}:{threat.eps * Fraction(quarters, 4)}"
    overrides = {"select": "last", "seed": seed, **NO_VALIDATION, **changes}
    out = options.out / options.setting / f"{name}-s{seed}"
    return generalist.train(
        f"{options.setting}-{method}", out=out, overrides=overrides, resume=out.exists(), progress=True
    )


def epochs_of(method: str, setting: str, times: int = 1) -> int:
    """As many whole epochs as make the passes of TRADES in the setting's epochs; NT is left as it is.

    A learner's idle share is that of the setting's length. At another length resets fall elsewhere: the printed
    Generalist-D has 9 % more passes than the others on the mini settings.
    """
    ours, trades = (generalist.load_recipe(f"{setting}-{name}") for name in (method, "trades"))
    return ours.training.epochs if method == "nt" else int(times * trades.training.epochs * work(trades) / work(ours))


def epochs(setting: str) -> int:
    return generalist.load_recipe(f"{setting}-at").training.epochs


def work(recipe: Recipe) -> float:
    """Passes of a training per step of an epoch."""
    plan = build_plan(recipe, steps=100)
    return sum(float(plan.active_epochs(name)) * each for name, each in passes(recipe).items())


def attacked(run: Run, suite: str, options: argparse.Namespace) -> dict[str, Any]:
    """The evaluation record of a run, its own if it has one of these images and this threat."""
    threats = [str(generalist.load_recipe(f"{options.setting}-at").validation.threats[0])]
    if run.record_file(suite).is_file():
        kept = run.record(suite)
        if kept["images"] == options.images and [name for name in kept["per_image"] if name != "natural"] == threats:
            return kept
    generalist.evaluate(run, threats=threats, suite=suite, images=options.images, progress=True)
    return run.record(suite)


Records = dict[str, dict[str, Any]]
"""Evaluation records by suite."""


def dialled(run: Run, by: str, options: argparse.Namespace) -> Iterator[tuple[str, Records]]:
    """The front of a dial, thinned out evenly in natural accuracy, on the test split."""
    threat = run.recipe.validation.threats[0]
    found = generalist.dial(run, by=by, beyond=options.beyond, points=options.points, threats=threat, progress=True)
    test = load_data(run.recipe).test
    for chosen in thinned(found.front, options.exported):
        model = found.model(chosen)
        yield str(chosen.mixture), {
            suite: generalist.evaluate(
                model, test, threats=threat, suite=suite, images=options.images, cache=run.evaluations,
                progress=True,
            ).record()
            for suite in options.suites
        }  # fmt: skip


def thinned(front: Sequence[Any], count: int) -> list[Any]:
    if len(front) <= count:
        return list(front)
    low, high = front[0].natural, front[-1].natural
    wanted = [low + (high - low) * index / (count - 1) for index in range(count)]
    return list(dict.fromkeys(min(front, key=lambda p, at=at: abs(p.natural - at)) for at in wanted))


def keep(
    run: Run,
    found: Sequence[tuple[str, Records]],
    group: str,
    seed: int,
    options: argparse.Namespace,
    *,
    dial: bool = False,
) -> None:
    """Add models to the record of their seed; the points of a dial take the place of all that it had before."""
    models: list[JudgedModel] = []
    for name, records in found:
        model = judged_run(run, records, name=name, group=group)
        if model.cost_in_at is not None:
            longer = run.recipe.training.epochs / epochs(options.setting)
            model = replace(model, cost_in_at=round(model.cost_in_at * longer, 3))
        rule = f"dial on validation (front, {options.exported} spread evenly)"
        models.append(replace(model, chosen_by=rule) if dial else model)
    first = found[0][1]
    alike = [conditions(record, seed=seed, setting=options.setting, title="these runs") for record in first.values()]
    attacks = {suite: one.attacks[suite] for suite, one in zip(first, alike, strict=True)}
    new = replace(alike[0], data=run.recipe.data.name, split="test", attacks=attacks)
    path = options.records / f"{options.setting}-s{seed}.json"
    with one_writer(path):
        if path.is_file():
            before = read_front_record(path)
            for suite in set(attacks) & set(before.attacks):
                before.check_alike(new, suite)
            new = replace(before, models=tuple(m for m in before.models if not (dial and m.group == group)))
        new.with_models(models, attacks).write(path)


@contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Processes that measure different methods of one seed wait for one another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def tables(records: Path, setting: str, *, suites: Sequence[str], at: Sequence[float]) -> Iterator[FrontComparison]:
    """A comparison of all records of a setting for each suite."""
    files = sorted(records.glob(f"{setting}-s*.json"))
    groups = {model.group for path in files for model in read_front_record(path).models}
    for suite in suites:
        yield generalist.fronts(files, suite=suite, at=at, baselines=[name for name in BASELINES if name in groups])


if __name__ == "__main__":
    main()
