"""Everything that is known of runs, read from their folders into one page."""

import base64
import platform
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from generalist.core.errors import RunError, UserError
from generalist.core.files import digest, fingerprint, user_path, write_atomically
from generalist.core.names import MEAN, UNION
from generalist.evaluation.classwise import classwise
from generalist.evaluation.explained import Explanation, gallery
from generalist.recipes.catalogue import method_of
from generalist.recipes.schema import Recipe
from generalist.report.comparison import COST, NATURAL, Comparison, Entry, distinct_names, make_comparison
from generalist.report.console import Reporter, Silent, make_reporter
from generalist.report.page import heated, magnified, picture, render
from generalist.report.paper import PaperTable, paper_table, paper_tables
from generalist.runs.compare import check_recorded, entry_of, run_folders, strongest_suite
from generalist.runs.explain import explain_run, explained_images
from generalist.runs.folder import GLOBAL, Run
from generalist.version import __version__

EXPLAINED = 6
"""So many runs have pictures; of more the page would become too large."""
CURVE_POINTS = 150
GALLERY = 8
NORM_NAMES = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1"}


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
    several = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    found = [Run(folder) for folder in run_folders([_folder(run) for run in several], purpose="report")]
    path = user_path(out)
    beside = paper_table(paper) if paper else None
    reporter = reporter or make_reporter(quiet=not progress)
    page = _Collected(found, reporter, None if root is None else user_path(root)).page(suite, beside, images)
    write_atomically(path, render(page).encode())
    return path


def _folder(run: Run | str | Path) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


class _Collected:
    """What the folders hold. What cannot be read is left out, and the page says so."""

    def __init__(self, runs: Sequence[Run], reporter: Reporter | None = None, root: Path | None = None) -> None:
        self.runs, self.reporter, self.root = list(runs), reporter or Silent(), root
        self.recipes = [run.recipe for run in runs]
        places = [run.folder.resolve() for run in runs]
        self.names = distinct_names([_short(recipe) for recipe in self.recipes], places)
        self.warnings: list[str] = []

    def page(self, suite: str | None, paper: PaperTable | None, images: int) -> dict[str, Any]:
        groups, entries = self._groups(suite, paper)
        explanations = self._explanations(images)
        dials = [row for name, run in self._named() if (row := self._read(partial(_dial, name, run)))]
        rows = [self._run(name, run, entries.get(name), explanations.get(name)) for name, run in self._named()]
        return {
            "title": _title(self.names),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": __version__,
            "lead": _lead(self.names, self.recipes, groups, dials),
            "warnings": self.warnings,
            "groups": groups,
            "dials": dials,
            "runs": rows,
            "gallery": self._gallery(explanations),
            "platform": platform.platform(),
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

    def _groups(self, suite: str | None, paper: PaperTable | None) -> tuple[list[dict[str, Any]], dict[str, Entry]]:
        """Runs that were evaluated alike are compared; the others stand in a table of their own."""
        chosen = suite or strongest_suite(self.runs)
        entries: dict[str, Entry] = {}
        for name, run in self._named():
            entry = self._read(partial(_recorded_entry, run, name, chosen))
            entries |= {name: entry} if entry else {}
        alike: dict[str, list[Entry]] = {}
        for entry in entries.values():
            key = fingerprint([entry.data, entry.record["examples"], sorted(entry.threats), entry.record["stages"]])
            alike.setdefault(key, []).append(entry)
        seeds = {name: _without_seed(recipe) for name, recipe in zip(self.names, self.recipes, strict=True)}
        return [_group(rows, paper or _about(rows), seeds) for rows in alike.values()], entries

    def _explanations(self, images: int) -> dict[str, Explanation]:
        found: dict[str, Explanation] = {}
        for name, run in list(self._named())[: EXPLAINED if images else 0]:
            if run.models and run.recipe.validation.threats:
                look = self._read(partial(explain_run, run, images=images, root=self.root, reporter=self.reporter))
                found |= {name: look} if look else {}
        return found

    def _gallery(self, explanations: Mapping[str, Explanation]) -> dict[str, Any] | None:
        """Images that one run alone gets right, or wrong, under the first threat."""
        if len(explanations) < 2:
            return None
        found = self._read(lambda: gallery(explanations))
        if found is None:
            return None
        view = found.views[1]
        rows = {}
        first = next(iter(explanations.values()))
        for name in explanations:
            both = {"gets": found.only_right[name][view], "misses": found.only_wrong[name][view]}
            rows[name] = {
                kind: {"count": len(places), "images": self._shown(places[:GALLERY], first)}
                for kind, places in both.items()
            }
        return {"threat": pretty(view), "runs": rows, "images": len(first.labels)}

    def _shown(self, places: Sequence[int], explanation: Explanation) -> list[dict[str, Any]]:
        pixels = explained_images(self.runs[0], places, root=self.root)
        return [
            {"src": picture(image), "label": explanation.classes[int(explanation.labels[place])]}
            for image, place in zip(pixels, places, strict=True)
        ]

    def _run(self, name: str, run: Run, entry: Entry | None, look: Explanation | None) -> dict[str, Any]:
        recipe = run.recipe
        metrics = self._read(lambda: run.metrics) or []
        summary = self._read(lambda: run.summary) or {}
        record = entry.record if entry else {}
        classes = self._read(lambda: _classes(record, look)) if record or look else None
        return {
            "name": name,
            "folder": str(run.folder),
            "method": method_of(recipe),
            "seed": recipe.seed,
            "epochs": recipe.training.epochs,
            "curves": _curves(metrics),
            "classes": classes,
            "confusions": _confusions(look) if look else [],
            "examples": _examples(look) if look else [],
            "ood": self._analysis(run, "ood"),
            "curve": self._analysis(run, "curve"),
            "cost": _cost(summary, record),
            "flags": [flag["message"] for flag in record.get("red_flags", [])],
            "notes": list(record.get("notes", [])),
            "selected_by": summary.get("selected_by", recipe.select),
            "selected": (summary.get("selected") or {}).get(GLOBAL),
            "recipe": yaml.safe_dump(run.written_recipe, sort_keys=False, allow_unicode=True),
            "environment": self._read(lambda: _environment(run)) or {},
            "commands": _commands(run, record),
            "checksums": {model: run.model_digest(model) for model in run.models}
            | {"recipe": run.identity}
            | ({"record": digest(run.record_file(record["suite"]).read_bytes())} if record else {}),
        }

    def _analysis(self, run: Run, suite: str) -> dict[str, Any] | None:
        """A measurement other than an attack, if the run has it."""
        if not run.record_file(suite).is_file():
            return None
        found: dict[str, Any] | None = self._read(lambda: run.analysis(suite))
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


def pretty(threat: str) -> str:
    """linf:8/255 → ℓ∞ 8/255"""
    norm, _, eps = threat.partition(":")
    return f"{NORM_NAMES[norm]} {eps}" if norm in NORM_NAMES and eps else threat


def _title(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs: {', '.join(names[:2])} and others"


def _about(entries: Sequence[Entry]) -> PaperTable | None:
    """The first table of a paper that has something to put beside these runs."""
    for table in paper_tables():
        known = any((entry.data, entry.network or "") in table.rows and entry.paper_names for entry in entries)
        if known and any(row.paper for row in make_comparison(entries, paper=table).rows):
            return table
    return None


def _group(entries: Sequence[Entry], paper: PaperTable | None, seeds: Mapping[str, str]) -> dict[str, Any]:
    comparison = make_comparison(entries, paper=paper)
    columns: list[dict[str, Any]] = [
        {"name": c.name, "label": _column_label(c.name, c.threat, c.attack), "digits": c.digits}
        for c in comparison.columns
    ]
    rows = [
        {
            "name": row.name,
            "values": dict(row.values),
            "paper": dict(row.paper),
            "ranks": {c.name: comparison.ranks(c)[place] for c in comparison.columns},
            "interval": _intervals(entry, comparison),
            "selected": row.selected,
            "ours": "generalist" in (row.method or row.recipe),
        }
        for place, (row, entry) in enumerate(zip(comparison.rows, entries, strict=True))
    ]
    return {
        "data": comparison.data,
        "images": comparison.images,
        "suite": comparison.suite,
        "threats": list(comparison.threats),
        "columns": columns,
        "rows": rows,
        "seeds": _over_seeds(rows, [column["name"] for column in columns], seeds),
        "paper": comparison.paper,
        "paper_rows": [{"name": row.name, "paper": dict(row.paper)} for row in comparison.paper_rows],
        "notes": list(comparison.notes),
        "robust": [column for column in columns if column["name"] not in (NATURAL, COST)],
        "sums_up": comparison.robust.name,
    }


def _column_label(name: str, threat: str, attack: str) -> str:
    if name == COST:
        return "training, s"
    return name if not attack or name in (MEAN, UNION) else f"{attack} {pretty(threat)}"


def _intervals(entry: Entry, comparison: Comparison) -> dict[str, Any]:
    """95 % intervals by column, where the record has them."""
    bounds = entry.record.get("interval_95", {})
    found = {NATURAL: bounds.get("natural")}
    for column in comparison.columns:
        if column.threat:
            found[column.name] = bounds.get("accuracy", {}).get(column.threat, {}).get(column.attack)
    return {name: interval for name, interval in found.items() if interval}


def _over_seeds(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], seeds: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Mean and standard deviation of runs that differ in the seed alone."""
    same: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        same.setdefault(seeds[row["name"]], []).append(row)
    found = []
    for members in same.values():
        if len(members) > 1:
            values = {c: [m["values"][c] for m in members if c in m["values"]] for c in columns}
            known = {c: each for c, each in values.items() if len(each) > 1}
            found.append({
                "name": members[0]["name"].partition(" (")[0],
                "runs": [m["name"] for m in members],
                "mean": {c: round(statistics.mean(each), 3) for c, each in known.items()},
                "sd": {c: round(statistics.stdev(each), 3) for c, each in known.items()},
                "ours": members[0]["ours"],
            })  # fmt: skip
    return found


def _lead(
    names: Sequence[str],
    recipes: Sequence[Recipe],
    groups: Sequence[Mapping[str, Any]],
    dials: Sequence[Mapping[str, Any]],
) -> list[str]:
    """What was trained, and the result, in plain sentences."""
    data = list(dict.fromkeys(recipe.data.name for recipe in recipes))
    epochs = sorted({recipe.training.epochs for recipe in recipes})
    long = f"{epochs[0]} epochs" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]} epochs"
    what = f"{names[0]} was" if len(names) == 1 else f"{len(names)} runs were"
    sentences = [f"{what} trained on {', '.join(data)} for {long}."]
    if not groups:
        return [*sentences, "No attack has been recorded yet, so nothing is known about robustness."]
    group = max(groups, key=lambda one: len(one["rows"]))
    robust = group["sums_up"]
    label = next(column["label"] for column in group["columns"] if column["name"] == robust)
    label = f"{label} of {group['suite']}" if robust in (MEAN, UNION) else label
    where = f"the {group['images']} attacked images of the test split"
    if len(group["rows"]) == 1:
        (row,) = group["rows"]
        parts = [
            f"{row['values'][c['name']]:.1f} % under {c['label']}" for c in group["robust"][: len(group["threats"])]
        ]
        sentences.append(f"On {where} it is right on {row['values'][NATURAL]:.1f} % unattacked, {' and '.join(parts)}.")
    else:
        best = max(group["rows"], key=lambda row: row["values"][robust])
        clean = max(group["rows"], key=lambda row: row["values"][NATURAL])
        first = f"On {where}, {clean['name']} is most accurate without an attack ({clean['values'][NATURAL]:.1f} %)"
        score = f"{best['values'][robust]:.1f} %"
        unattacked = f"{best['values'][NATURAL]:.1f} % unattacked"
        second = "most" if best is clean else f"{best['name']} is most"
        sentences.append(
            f"{first}, and {second} robust by {label} ({score}{'' if best is clean else f', with {unattacked}'})."
        )
    if dials:
        sentences.append(f"The dial of {dials[0]['name']} offers {len(dials[0]['points'])} evaluated mixtures below.")
    return sentences


def _dial(name: str, run: Run) -> dict[str, Any] | None:
    record = run.dial_record
    if record is None:
        return None
    examples = record["examples"]
    shape = tuple(examples["shape"])
    classes = record["classes"]

    def shown(text: str) -> str:
        return picture(np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(shape))

    points = []
    for place, (point, said) in enumerate(zip(record["points"], examples["of_points"], strict=True)):
        points.append({
            "place": place,
            **{key: point[key] for key in ("weights", "natural", "robust", "on_front", "endpoint")},
            **{key: point[key] for key in ("by_class", "losses")},
            "mean": point[MEAN],
            "union": point[UNION],
            "modules": bool(point["modules"]),
            "said": [one["said"] for one in said],
            "attacked": [{threat: shown(text) for threat, text in one["attacked"].items()} for one in said],
        })  # fmt: skip
    chosen = record.get("chosen")
    picked = next(
        (p["place"] for p, row in zip(points, record["points"], strict=True)
         if chosen and row["weights"] == chosen["weights"] and row["modules"] == chosen["modules"]), None
    )  # fmt: skip
    return {
        "name": name,
        "folder": str(run.folder),
        "endpoints": list(record["endpoints"]),
        "threats": {threat: pretty(threat) for threat in record["threats"]},
        "images": record["images"],
        "attack": record["attack"],
        "by": record["by"],
        "beyond": record["beyond"],
        "classes": classes,
        "points": points,
        "pictures": [shown(text) for text in examples["images"]],
        "labels": [one["label"] for one in examples["of_points"][0]],
        "beside": [
            {"name": other, "natural": row["natural"], "robust": row["robust"], "mean": row[MEAN], "union": row[UNION]}
            for other, row in record["beside"].items()
        ],
        "barriers": record["barriers"],
        "chosen": picked,
        "rule": chosen["rule"] if chosen else "",
        "python": _dial_call(run, record),
    }


def _dial_call(run: Run, record: Mapping[str, Any]) -> str:
    """The call that gives the same points again, as they are kept."""
    others = record["runs"] if len(record["runs"]) > 1 else str(run.folder)
    options = {
        "between": list(record["endpoints"]),
        "beyond": record["beyond"],
        "points": len(record["points"]),
        "by": record["by"],
        "images": record["images"],
        "attack": record["attack"],
        "seed": record["seed"],
    }
    return f"generalist.dial({others!r}, {', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Series of [epoch, value] by panel and name; long ones thinned out."""
    epochs = [row for row in metrics if row["kind"] == "epoch"]
    judged = [row for row in metrics if row["kind"] == "validation"]
    panels: dict[str, dict[str, list[list[float]]]] = {}

    def add(panel: str, name: str, epoch: float, value: float | None) -> None:
        if value is not None and np.isfinite(value):
            panels.setdefault(panel, {}).setdefault(name, []).append([epoch, float(f"{value:.5g}")])

    for row in epochs:
        for name, means in row["train"].items():
            add("loss", name, row["epoch"], means["loss"])
        for name, weight in row["gamma"].items() if len(row["gamma"]) > 1 else ():
            add("γ", name, row["epoch"], weight)
        for name, distance in row.get("drift", {}).get("from_global", {}).items():
            add("distance to the global learner", name, row["epoch"], distance)
    for row in judged:
        for name, scores in row["models"].items():
            add("natural accuracy, %", name, row["epoch"], scores["natural"])
            for threat, value in scores["robust"].items():
                add(f"{pretty(threat)} accuracy, %", name, row["epoch"], value)
    thin = {p: {n: _thinned(points) for n, points in series.items()} for p, series in panels.items()}
    split = judged[-1]["split"] if judged else ""
    return {"panels": thin, "resets": [row["epoch"] for row in epochs if row.get("redistributed")], "split": split}


def _thinned(points: list[list[float]]) -> list[list[float]]:
    every = -(-len(points) // CURVE_POINTS)
    return points if every == 1 else [*points[:-1:every], points[-1]]


def _classes(record: Mapping[str, Any], look: Explanation | None) -> dict[str, Any] | None:
    """Accuracy by class: of the record where it has labels, else of the images that were looked at."""
    if record:
        found = classwise(record, classes=look.classes if look else ())
        source = f"{len(found.labels)} images, {record['suite']}"
    elif look:
        found, source = look.classwise, f"{len(look.labels)} images, {look.attack}"
    else:
        return None
    accuracy = {pretty(measure): values for measure, values in found.record()["classes"].items()}
    return {"names": list(found.classes), "counts": found.counts.tolist(), "accuracy": accuracy, "of": source}


def _confusions(look: Explanation) -> list[dict[str, Any]]:
    """Per threat the classes that are most often taken for another one."""
    return [
        {
            "view": pretty(view) if view != NATURAL else "unattacked",
            "most": [
                f"{look.classes[c.label]} → {look.classes[c.predicted]} ({c.percent:.0f} %)"
                for c in look.confusions(view, most=4)
            ],
        }
        for view in look.views
    ]


def _examples(look: Explanation) -> list[dict[str, Any]]:
    rows = []
    for one in look.examples:
        views = []
        for view in look.views:
            attacked = one.x_adv.get(view)
            pixels = one.image if attacked is None else (attacked * 255).round().clip(0, 255).astype(np.uint8)
            changed, times = magnified(one.perturbation[view]) if view in one.perturbation else ("", 0.0)
            views.append({
                "view": pretty(view) if view != NATURAL else "unattacked",
                "image": picture(pixels),
                "changed": changed,
                "times": round(times, 1),
                "heat": heated(pixels, one.heat[view]),
                "said": look.classes[one.predicted[view]],
                "sure": round(100 * one.confidence[view]),
                "right": one.predicted[view] == one.label,
            })  # fmt: skip
        rows.append({"label": look.classes[one.label], "views": views})
    return rows


def _cost(summary: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seconds": summary.get("seconds"),
        "cpu_seconds": summary.get("cpu_seconds"),
        "memory": summary.get("peak_memory_mib"),
        "in_at": summary.get("cost_in_at"),
        "parameters": summary.get("parameters"),
        "live_epochs": summary.get("live_epochs", {}),
        "attack_seconds": record.get("wall_seconds"),
    }


def _environment(run: Run) -> dict[str, str]:
    found = run.environment
    plain = {key: value for key, value in found.items() if isinstance(value, str | int | float) and value != ""}
    return {key: str(value) for key, value in {**found.get("versions", {}), **plain}.items()}


def _commands(run: Run, record: Mapping[str, Any]) -> list[str]:
    """What made the run and its record, as far as the folder tells."""
    recipe = run.recipe
    commands = [f"generalist train {run.recipe_file} --out FOLDER"] if run.recipe_file.is_file() else []
    if record:
        threats = [threat for threat in record["per_image"] if threat != NATURAL]
        own = [str(threat) for threat in recipe.validation.threats]
        extra = "" if threats == own else "".join(f" --threat {threat}" for threat in threats)
        commands.append(
            f"generalist eval {run.folder} --suite {record['suite']} --n {record['images']}{extra} --global"
        )
    return commands
