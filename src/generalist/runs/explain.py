"""A model of a run explained: predictions without and under attack, and Grad-CAM of a few images, kept in the run."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from generalist.core.errors import RunError, UserError
from generalist.core.files import digest, fingerprint, read_json, seal_holds, sealed, write_atomically, write_json
from generalist.data import sequential_batches
from generalist.distributed import ranks
from generalist.evaluation import load_suite, verdict_key
from generalist.evaluation.explained import Explanation, Gallery, explain, gallery
from generalist.evaluation.verdicts import example_ids
from generalist.report.classwise import draw_one
from generalist.report.comparison import distinct_names
from generalist.report.confusion import draw_confusion
from generalist.report.console import Reporter, Silent
from generalist.report.gradcam import draw_gallery, draw_gradcam, gallery_rows
from generalist.runs.experiment import load_data
from generalist.runs.folder import Run, load
from generalist.runs.paths import GLOBAL
from generalist.training.precision import pick_device

METHOD_VERSION = 1
"""Raised whenever an explanation is made in another way: older ones are then not used."""
SUITE = "pgd20"


def explain_run(
    run: Run | str | Path,
    *,
    images: int = 200,
    examples: int = 8,
    seed: int = 0,
    name: str = GLOBAL,
    root: str | Path | None = None,
    download: bool = False,
    reporter: Reporter | None = None,
) -> Explanation:
    """Explain a model of a run on the first images of its test split, under PGD-20 and its own threats.

    Args:
        run: A run, or its folder.
        images: How many images are attacked.
        examples: How many of them are shown with Grad-CAM: half survive every attack, half break.
        seed: Of the random starts of PGD.
        name: Which model of the run: `global`, or the name of a learner.
        root: The folder that has the data, if it is not where the recipe says.
        download: Whether missing data is fetched from its official source.
        reporter: Who is told of the progress.

    Returns:
        The Explanation. It is kept in the run folder, and found there by the next call of the same model and options. A
        damaged file is named and computed again.

    Example:
        >>> import generalist
        >>> from generalist.runs.explain import explain_run
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-at", out=tmp / "at", overrides=small)
        >>> explained = explain_run(run, images=20, examples=2)
        >>> explained.confusion["natural"].sum(), explained.images.shape
        (np.int64(20), (2, 1, 8, 8))
    """
    for option, value in (("images", images), ("examples", examples)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, got {value}")
    run = run if isinstance(run, Run) else Run(run)
    recipe, suite = run.recipe, load_suite(SUITE)
    threats = recipe.validation.threats
    if not threats:
        raise UserError(f"{run.folder} has no threats in `validation`; there is no attack to explain")
    dataset = load_data(recipe, download=download, root=None if root is None else Path(root))
    model = load(run.folder, name).to(pick_device(recipe.training.device))
    count, workers = min(images, len(dataset.test)), recipe.data.workers
    about = {"run": run.folder.resolve().name, "model": name, "data": dataset.name, "split": "test"}
    batches = sequential_batches(dataset.test, batch_size=250, workers=workers, limit=count)
    ids = [one for batch in batches for one in example_ids(batch.x, batch.y)]
    key = fingerprint({
        "version": METHOD_VERSION,
        "model": verdict_key(model, dataset.shape),
        "name": name,
        "threats": [str(threat) for threat in threats],
        "attacks": [[stage.label, stage.spec()] for stage in suite.stages],
        "classes": list(dataset.classes),
        "images": ids,
        "examples": examples,
        "seed": seed,
    })  # fmt: skip
    kept: Explanation | None = ranks.all_gather(_read(run, key, about) if ranks.is_main() else None)[0]
    if kept is not None:
        return kept
    reporter = reporter if reporter is not None and ranks.is_main() else Silent()
    with reporter.bar(f"{about['run']}/{name}", 0, count):
        found = explain(
            model, dataset.test, threats=threats, suite=suite, classes=dataset.classes, images=count,
            examples=examples, seed=seed, workers=workers, about=about, progress=reporter.stage,
        )  # fmt: skip
    if ranks.is_main():
        _keep(run, key, found)
    return found


def _read(run: Run, key: str, about: dict[str, Any]) -> Explanation | None:
    """The kept explanation of that key; a damaged one is named and counts as none."""
    path, arrays_path = run.explanation_files(key)
    if not path.is_file():
        return None
    try:
        row, content = read_json(path), arrays_path.read_bytes()
        if seal_holds(row) and row["of"] == key and row["arrays_sha256"] == digest(content):
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return Explanation.from_arrays(
                    dict(arrays), classes=row["classes"], threats=row["threats"], attack=row["attack"],
                    image_ids=row["image_ids"], about=about | {"seed": row["seed"]},
                )  # fmt: skip
    except (UserError, OSError, KeyError, TypeError, AttributeError, ValueError, BadZipFile):
        pass
    warnings.warn(f"{path} or its arrays are damaged; the explanation is computed again", stacklevel=3)
    return None


def _keep(run: Run, key: str, found: Explanation) -> None:
    """The arrays first: what has a JSON is whole."""
    path, arrays_path = run.explanation_files(key)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **found.arrays())  # type: ignore[arg-type]
    row = {
        "of": key,
        **found.about,
        "classes": list(found.classes),
        "threats": list(found.threats),
        "attack": found.attack,
        "image_ids": list(found.image_ids),
        "arrays_sha256": digest(buffer.getvalue()),
    }
    try:
        write_atomically(arrays_path, buffer.getvalue())
        write_json(path, sealed(row))
    except RunError as error:
        warnings.warn(f"the explanation is not kept: {error}", stacklevel=3)


def explained_images(
    run: Run | str | Path, indices: Sequence[int], *, root: str | Path | None = None
) -> NDArray[np.uint8]:
    """The images of these indices in a run's test split, uint8 [N, C, H, W], as a gallery shows them."""
    run = run if isinstance(run, Run) else Run(run)
    dataset = load_data(run.recipe, root=None if root is None else Path(root))
    if not len(indices):
        return np.zeros((0, *dataset.shape), dtype=np.uint8)
    split = dataset.test.take(torch.tensor(list(indices), dtype=torch.int64))
    batches = sequential_batches(split, batch_size=250, workers=run.recipe.data.workers)
    return np.concatenate([(batch.x * 255).round().byte().contiguous().numpy() for batch in batches])


@dataclass(frozen=True)
class ExplainReport:
    """Explanations by the name of their run, the gallery of several with its first rows, and the figures drawn."""

    explanations: Mapping[str, Explanation]
    gallery: Gallery | None
    rows: Mapping[str, tuple[int, ...]]
    files: tuple[Path, ...]

    def record(self) -> dict[str, Any]:
        """All of it but pixels, as JSON."""
        return {
            "runs": {name: found.record() for name, found in self.explanations.items()},
            "gallery": None if self.gallery is None else self.gallery.record(),
            "files": [str(path) for path in self.files],
        }


def explain_runs(
    runs: Sequence[Run | str | Path],
    *,
    images: int = 200,
    examples: int = 8,
    seed: int = 0,
    name: str = GLOBAL,
    out: Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
    reporter: Reporter | None = None,
) -> ExplainReport:
    """Explain the same model of each run and draw its figures; of several, the gallery too.

    Figures go into figures/ of each run, or all into `out`. The gallery of several runs is drawn only where `out` is
    given.
    """
    found = [run if isinstance(run, Run) else Run(run) for run in runs]
    places = [run.folder.resolve() for run in found]
    for run, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{run.folder} is given twice")
    titles = distinct_names([place.name for place in places], places)
    explanations = {
        title: explain_run(
            run, images=images, examples=examples, seed=seed, name=name, root=root, download=download,
            reporter=reporter,
        )
        for title, run in zip(titles, found, strict=True)
    }  # fmt: skip
    shown = gallery(explanations) if len(found) > 1 else None
    rows = gallery_rows(shown) if shown is not None else {}
    files: dict[Path, bytes] = {}
    for kind in ("png", "svg") if ranks.is_main() else ():
        for number, (run, (title, one)) in enumerate(zip(found, explanations.items(), strict=True)):
            for what, draw in _FIGURES.items():
                own = run.explain_figure(what, name)
                several = f"{number + 1}-{own.name}" if len(found) > 1 else own.name
                path = (own if out is None else out / several).with_suffix(f".{kind}")
                files[path] = draw(one, title=f"{title}/{name}", kind=kind)
        if out is not None and rows:
            wanted = sorted({index for indices in rows.values() for index in indices})
            pixels = dict(zip(wanted, explained_images(found[0], wanted, root=root), strict=True))
            first = next(iter(explanations.values()))
            title = f"{first.about['data']}: where models differ under {first.attack}"
            files[out / f"gallery.{kind}"] = draw_gallery(rows, pixels, first, title=title, kind=kind)
    for path, content in files.items():
        write_atomically(path, content)
    return ExplainReport(explanations, shown, rows, tuple(files))


def _bars(found: Explanation, *, title: str, kind: str) -> bytes:
    heading = f"{title}: {len(found.labels)} images of the test split, {found.attack}"
    return draw_one(found.classwise, title=heading, kind=kind)


_FIGURES: dict[str, Callable[..., bytes]] = {"classes": _bars, "confusion": draw_confusion, "gradcam": draw_gradcam}
"""What is drawn of each model."""
