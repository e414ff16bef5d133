"""Accuracy against ε of a model of a run, or of any model."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

from generalist.core.names import CURVE
from generalist.distributed import ranks
from generalist.evaluation import CurveResult, evaluate_curve
from generalist.report.console import Reporter, Silent
from generalist.runs.folder import Run
from generalist.runs.targets import Target


def curve_of_target(
    target: Target,
    *,
    images: int | None = None,
    batch_size: int = 250,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> CurveResult:
    """The minimal distances of one target; of a run, its other records of the same model count too."""
    reporter = reporter if reporter is not None and ranks.is_main() else Silent()
    total = min(len(target.split), images or len(target.split))
    broken = None if target.run is None else partial(_broken, target.run, target.name)

    def progress(done: float, of: int, share: float) -> None:
        reporter.advance(done, of, share=share)

    with reporter.bar(f"{target.title} {CURVE}", 0, total):
        result = evaluate_curve(
            target.model, target.split, threats=target.threats, seed=seed, batch_size=batch_size, limit=images,
            workers=target.workers, cache=target.cache, broken=broken, progress=progress,
        )  # fmt: skip
    return replace(result, flags=(*target.flags, *result.flags), about=target.about)


def _broken(run: Run, name: str, model: str) -> dict[str, list[tuple[Fraction, frozenset[str]]]]:
    """The images that attack suites broke, of this very model, by norm and radius."""
    found: dict[str, list[tuple[Fraction, frozenset[str]]]] = {}
    for record in run.suite_records(name):
        if record.get("model_sha256") != model:
            continue
        for threat, row in record["threats"].items():
            verdicts = record["per_image"][threat].values()
            names = [n for n, each in zip(record["examples"], zip(*verdicts, strict=True), strict=True) if 0 in each]
            found.setdefault(row["norm"], []).append((Fraction(row["eps"]), frozenset(names)))
    return found
