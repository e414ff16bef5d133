"""Corruptions and perturbation sequences for a model of a run, or for any model."""

from dataclasses import replace

from generalist.core.names import OOD
from generalist.data.corruptions.official import read_official
from generalist.data.locate import data_root
from generalist.distributed import ranks
from generalist.evaluation import OodResult, evaluate_ood
from generalist.report.console import Reporter, Silent
from generalist.runs.targets import Target


def ood_of_target(
    target: Target,
    *,
    images: int | None = None,
    batch_size: int = 250,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> OodResult:
    """One target under all corruptions; the official images where they are below the root of its data."""
    reporter = reporter if reporter is not None and ranks.is_main() else Silent()
    official = read_official(target.about.get("data", ""), data_root(target.root), target.split)
    total = min(len(target.split), images or len(target.split))

    def progress(done: float, of: int, share: float) -> None:
        reporter.advance(done, of, share=share)

    with reporter.bar(f"{target.title} {OOD}", 0, total):
        result = evaluate_ood(
            target.model, target.split, official=official, seed=seed, batch_size=batch_size, limit=images,
            workers=target.workers, cache=target.cache, progress=progress,
        )  # fmt: skip
    return replace(result, flags=(*target.flags, *result.flags), about=target.about)
