"""Everything that is known of runs, read from their folders into one page."""

import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from generalist.core.errors import RunError, UserError
from generalist.core.files import digest, fingerprint, user_path, write_atomically
from generalist.core.names import CURVE, OOD
from generalist.evaluation.explained import Explanation, gallery
from generalist.models import read_extra
from generalist.recipes.catalogue import method_of
from generalist.recipes.schema import Recipe
from generalist.report.comparison import NATURAL, Entry, distinct_names
from generalist.report.console import Reporter, make_reporter
from generalist.report.page.dial import dial_call, dial_view
from generalist.report.page.explained import classes_view, confusions_view, examples_view, gallery_view
from generalist.report.page.lead import lead, shared_ending, title
from generalist.report.page.measured import corruptions_view, curve_view
from generalist.report.page.rendering import render
from generalist.report.page.results import result_groups
from generalist.report.page.training import cost_view, training_view
from generalist.report.paper import PaperTable, paper_table
from generalist.runs.compare import (
    check_recorded,
    distinct_runs,
    entry_of,
    recorded_classes,
    run_folders,
    strongest_suite,
)
from generalist.runs.explain import explain_run, explained_images
from generalist.runs.folder import Run
from generalist.version import __version__

EXPLAINED = 6
"""So many runs have pictures; of more the page would become too large."""


def write_report(
    runs: Sequence[Run | str | Path] | Run | str | Path,
    out: str | Path = "report.html",
    *,
    suite: str | None = None,
    paper: str | None = None,
    images: int = 200,
    root: str | Path | None = None,
    progress: bool = False,
    reporter: Reporter | None = None,
) -> Path:
    """Write one HTML file that explains runs: results, trade-off, dial, curves, classes, examples, cost and recipes.

    Nothing is trained. What `evaluate` and `dial` found is read from the run folders; predictions under PGD-20 and
    Grad-CAM of a few images are computed and kept there.

    Args:
        runs: Runs or their folders.
        out: The file to write. It needs no network and no other file.
        suite: Of which suite the results are; the strongest shipped one that all runs have, if not given.
        paper: The number of a paper's table whose values stand beside ours; the first that is about these data and
            networks, if not given.
        images: How many test images are looked at for confusions and examples; 0 leaves them out.
        root: The folder that has the data.
        progress: Show progress on standard error.
        reporter: Where progress goes instead.

    Returns:
        The file.

    Example:
        >>> import generalist
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-nt", out=tmp / "reported", overrides=small)
        >>> page = generalist.write_report(run, tmp / "report.html", images=20)
        >>> page.read_text()[:15]
        '<!doctype html>'
    """
    given = [runs] if isinstance(runs, Run | str | Path) else runs
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in given]
    found = distinct_runs(run_folders(folders, purpose="report"))
    path = user_path(out)
    beside = paper_table(paper) if paper else None
    collected = _Collected(
        found, reporter or make_reporter(quiet=not progress), None if root is None else user_path(root)
    )
    write_atomically(path, render(collected.page(suite, beside, images)).encode())
    return path


class _Collected:
    """What the folders hold. What cannot be read is left out, and the page says so."""

    def __init__(self, runs: Sequence[Run], reporter: Reporter, root: Path | None) -> None:
        self.runs, self.reporter, self.root = list(runs), reporter, root
        self.recipes = [run.recipe for run in runs]
        places = [run.folder.resolve() for run in runs]
        self.names = distinct_names([_short(recipe) for recipe in self.recipes], places)
        self.warnings: list[str] = []
        self.mixtures = [(self._read(partial(_made_of, run)) or {}).get("mixture", "") for run in runs]

    def page(self, suite: str | None, paper: PaperTable | None, images: int) -> dict[str, Any]:
        """All that the template and the scripts show, in JSON types."""
        entries = self._entries(suite)
        seedless = {name: _without_seed(recipe) for name, recipe in zip(self.names, self.recipes, strict=True)}
        groups = result_groups(list(entries.values()), paper=paper, seedless=seedless)
        looks = self._explanations(images)
        data = [recipe.data.name for recipe in self.recipes]
        epochs = [recipe.training.epochs for recipe in self.recipes]
        mixed = [name for name, mixture in zip(self.names, self.mixtures, strict=True) if mixture]
        abouts, shared = shared_ending([recipe.description for recipe in self.recipes])
        rows = [self._run(name, run, entries.get(name), looks.get(name)) for name, run in self._named()]
        for row, about, mixture in zip(rows, abouts, self.mixtures, strict=True):
            ended = about if row["finished"] else f"{about} (not finished)"
            row["about"] = f"mixture by the dial: {mixture}" if mixture else ended
        return {
            "title": title(self.names, data),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": __version__,
            "lead": lead(self.names, mixed=mixed, data=data, epochs=epochs, groups=groups),
            "about": shared,
            "command": shlex.join(["generalist", "report", *(str(run.folder) for run in self.runs)]),
            "groups": groups,
            "dials": [row for name, run in self._named() if (row := self._read(partial(_dial, name, run)))],
            "runs": rows,
            "gallery": self._gallery(looks),
            "looked_at": max((len(look.labels) for look in looks.values()), default=0),
            "warnings": self.warnings,
        }

    def _named(self) -> Iterator[tuple[str, Run]]:
        return zip(self.names, self.runs, strict=True)

    def _read(self, read: Callable[[], Any]) -> Any:
        """What it returns; None where a file cannot be believed, which the page then says."""
        try:
            return read()
        except (UserError, RunError) as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            self.warnings.append(str(error))
            return None

    def _entries(self, suite: str | None) -> dict[str, Entry]:
        """The evaluated runs by name. That none was evaluated is said once, in place of the results."""
        chosen = suite or strongest_suite(self.runs)
        if suite is None and not any(run.record_file(chosen).is_file() for run in self.runs):
            return {}
        found = {name: self._read(partial(_recorded_entry, run, name, chosen)) for name, run in self._named()}
        return {name: entry for name, entry in found.items() if entry}

    def _explanations(self, images: int) -> dict[str, Explanation]:
        found: dict[str, Explanation] = {}
        for name, run in list(self._named())[: EXPLAINED if images else 0]:
            if run.models and run.recipe.validation.threats:
                look = self._read(partial(explain_run, run, images=images, root=self.root, reporter=self.reporter))
                found |= {name: look} if look else {}
        return found

    def _gallery(self, looks: Mapping[str, Explanation]) -> list[dict[str, Any]]:
        """Images by which the runs differ; none where they were not shown the same ones."""
        if len({look.image_ids for look in looks.values()}) != 1 or len(looks) < 2:
            return []
        first = self.runs[self.names.index(next(iter(looks)))]
        pixels = partial(explained_images, first, root=self.root)
        return self._read(lambda: gallery_view(gallery(looks), next(iter(looks.values())), pixels)) or []

    def _run(self, name: str, run: Run, entry: Entry | None, look: Explanation | None) -> dict[str, Any]:
        recipe = run.recipe
        metrics = self._read(lambda: run.metrics) if run.metrics_file.is_file() else []
        summary = self._read(lambda: run.summary) if run.summary_file.is_file() else {}
        record = entry.record if entry else {}
        names = look.classes if look else self._read(lambda: recorded_classes(run.folder)) or ()
        return {
            "name": name,
            "folder": str(run.folder),
            "network": recipe.model.name,
            "seed": recipe.seed,
            "epochs": recipe.training.epochs,
            "curves": training_view(metrics or []),
            "classes": self._read(lambda: classes_view(record, look, names)),
            "confusions": confusions_view(look) if look else [],
            "examples": examples_view(look) if look else [],
            "ood": self._measured(run, OOD, corruptions_view),
            "curve": self._measured(run, CURVE, curve_view),
            "cost": cost_view(summary or {}, record),
            "flags": [flag["message"] for flag in record.get("red_flags", [])],
            "notes": list(record.get("notes", [])),
            "evaluated": bool(record),
            "finished": bool(summary),
            "selected_by": (summary or {}).get("selected_by", recipe.select),
            "recipe": yaml.safe_dump(run.written_recipe, sort_keys=False, allow_unicode=True),
            "environment": self._read(lambda: _environment(run)) or {},
            "commands": self._read(lambda: _commands(run, record)) or [],
            "checksums": self._read(lambda: _checksums(run, record)) or {},
        }

    def _measured(
        self, run: Run, suite: str, view: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """A measurement other than an attack, if the run has it."""
        there = run.record_file(suite).is_file()
        found: dict[str, Any] | None = self._read(lambda: view(run.analysis(suite))) if there else None
        return found


def _recorded_entry(run: Run, name: str, suite: str) -> Entry:
    check_recorded([run], suite)
    return entry_of(run, name, suite)


def _short(recipe: Recipe) -> str:
    """What tells runs on one setting apart: the name without the setting."""
    return method_of(recipe) or recipe.name.removeprefix(f"{recipe.setting}-")


def _without_seed(recipe: Recipe) -> str:
    """The same for runs that differ in nothing but the seed."""
    return fingerprint({**recipe.plain(), "seed": 0})


def _dial(name: str, run: Run) -> dict[str, Any] | None:
    record = run.dial_record
    if record is None:
        return None
    try:
        return {"name": name, "python": dial_call(str(run.folder), record), **dial_view(record)}
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{run.dial_record_file} is not as this version writes it; dial the run again") from None


def _made_of(run: Run) -> dict[str, Any]:
    """What a dial mixed it of and how it was chosen, as its card says; nothing for a run that was trained."""
    model = run.model_file()
    made = read_extra(model.with_suffix("")).get("dial") if model.is_file() else None
    return made if isinstance(made, dict) and {"mixture", "endpoints", "chosen"} <= made.keys() else {}


def _environment(run: Run) -> dict[str, str]:
    found = run.environment
    versions = found.get("versions")
    plain = {key: value for key, value in found.items() if isinstance(value, str | int | float) and value != ""}
    return {key: str(value) for key, value in {**(versions if isinstance(versions, dict) else {}), **plain}.items()}


def _training_command(run: Run) -> str:
    """The command that was typed; for a run that a Python program made, one that trains the same."""
    typed = run.environment.get("command")
    if isinstance(typed, list) and typed:
        program = Path(str(typed[0]))
        if program.name == "generalist" or program.parts[-2:] == ("generalist", "__main__.py"):
            return shlex.join(["generalist", *map(str, typed[1:])])
    return shlex.join(["generalist", "train", str(run.recipe_file), "--out", "FOLDER"])


def _commands(run: Run, record: Mapping[str, Any]) -> list[str]:
    """What made the run and its record, as far as the folder tells."""
    commands = []
    made_of = _made_of(run)
    if not made_of:
        commands.append(_training_command(run))
    else:
        sources = dict.fromkeys(str(one["run"]) for one in made_of["endpoints"].values())
        dialled = shlex.join(["generalist", "dial", *sources, "--export", str(run.folder)])
        commands.append(f"{dialled}  # {made_of['mixture']}, chosen by: {made_of['chosen']['rule']}")
    if record:
        threats = [threat for threat in record["per_image"] if threat != NATURAL]
        own = [str(threat) for threat in run.recipe.validation.threats]
        extra = [] if threats == own else [part for threat in threats for part in ("--threat", threat)]
        images = ["--n", str(record["images"])]
        commands.append(shlex.join([
            "generalist", "eval", str(run.folder), "--suite", record["suite"], *images, *extra, "--global",
        ]))  # fmt: skip
    return commands


def _checksums(run: Run, record: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the recipe's decisive fields, the models and the record."""
    found = {"recipe": run.identity, **{f"model {name}": run.model_digest(name) for name in run.models}}
    return found | ({"record": digest(run.record_file(record["suite"]).read_bytes())} if record else {})
