"""A trained model for others: as a file of another format, or as a folder that needs nothing of this package."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from generalist.core.errors import UserError, shown, unknown
from generalist.core.files import digest, user_path, write_atomically, write_json
from generalist.core.names import EXPORT_FORMATS
from generalist.core.threat import Threat
from generalist.models import load_model, read_extra, save_model
from generalist.models.exchange import from_onnx, from_pt2, import_onnx, largest_difference, to_onnx, to_pt2
from generalist.models.spec import Classifier
from generalist.report.card import CardFacts, model_card
from generalist.report.console import Reporter, make_reporter
from generalist.runs.claims import check_free, new_folder
from generalist.runs.compare import is_outdated
from generalist.runs.folder import Run, load
from generalist.runs.hub import check_push, push_folder
from generalist.runs.paths import GLOBAL, RunPaths
from generalist.runs.robustbench import robustbench_entry
from generalist.version import __version__

SUFFIXES = {"safetensors": ".safetensors", "pt2": ".pt2", "onnx": ".onnx", "hub-folder": "", "robustbench": ".json"}
LOAD = {
    "safetensors": 'import generalist\n\nmodel = generalist.load("{file}")',
    "pt2": 'import torch\n\nmodel = torch.export.load("{file}").module()',
    "onnx": (
        "import onnxruntime\n\n"
        'session = onnxruntime.InferenceSession("{file}")\n'
        'logits = session.run(["logits"], {{"images": images}})[0]'
    ),
}
WEIGHTS, PROGRAM, CARD, CONFIG = "model.safetensors", "model.pt2", "README.md", "config.json"
"""The files of a hub folder."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote. `difference` is the largest one between logits of the model and of the file loaded back."""

    path: Path
    files: tuple[Path, ...]
    difference: float | None = None
    pushed: str | None = None

    def record(self) -> dict[str, Any]:
        """As JSON."""
        files = [str(path) for path in self.files]
        return {"path": str(self.path), "files": files, "largest_difference": self.difference, "pushed": self.pushed}


@dataclass(frozen=True)
class _Source:
    """A model with all that is known of it."""

    title: str
    name: str
    model: Classifier
    weights_sha256: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    run: Run | None = None


def export(
    source: Run | str | Path,
    to: str = "hub-folder",
    *,
    out: str | Path | None = None,
    name: str | None = None,
    threat: str | Threat | None = None,
    push: str | None = None,
    progress: bool = False,
    reporter: Reporter | None = None,
) -> Exported:
    """Write a trained model for other programs, with a model card, and check what was written.

    The model has its normalisation inside: it takes images [N, C, H, W] in [0, 1], any number of them. What was written
    is loaded back and must give the same logits.

    Args:
        source: A run or its folder, also one that a dial exported, or a model file.
        to: `safetensors` (weights, and how to build the network), `pt2` (torch.export), `onnx`, `hub-folder` (a folder
            with the pt2 program, the weights, a card and a config, which plain torch loads in one line), or
            `robustbench` (no model, but the entry of its AutoAttack record).
        out: The file or folder; called as the run, in the current folder, if not given.
        name: Which model of a run, `global` if not given, or the name of a learner.
        threat: For `robustbench`: which one, where the record has several.
        push: `user/name` on a hub, for `hub-folder`; needs huggingface_hub. Nothing is sent without it.
        progress: Show progress on standard error.
        reporter: Where progress goes instead.

    Returns:
        The path, all files written, and the largest difference found in the check.

    Example:
        >>> import generalist, torch
        >>> small = {"training.epochs": 1, "data.limit": 100, "model.width": 2, "validation.images": 10}
        >>> run = generalist.train("digits-nt", out=tmp / "nt", overrides=small)
        >>> exported = generalist.export(run, out=tmp / "mine")
        >>> sorted(path.name for path in exported.files)
        ['README.md', 'config.json', 'model.json', 'model.pt2', 'model.safetensors']
        >>> model = torch.export.load(exported.path / "model.pt2").module()  # nothing of this package is needed
        >>> model(torch.rand(3, 1, 8, 8)).shape
        torch.Size([3, 10])
    """
    if to not in EXPORT_FORMATS:
        raise unknown("format", to, EXPORT_FORMATS)
    if push is not None:
        if to != "hub-folder":
            raise UserError(f"a hub takes a hub-folder, not {to}; leave push out, or export to hub-folder")
        check_push(push)
    if threat is not None and to != "robustbench":
        raise UserError(f"a threat goes with robustbench, not with {to}; a model is exported for all of them")
    if to == "onnx":
        import_onnx()
    given = source.folder if isinstance(source, Run) else user_path(source)
    if name is not None and given.is_file():
        raise UserError(f"{given} is one model; the name of another goes with its run folder")
    if to == "robustbench":
        return _write_entry(given, out, name, threat)
    reporter = reporter or make_reporter(quiet=not progress)
    found = _source(given, name)
    path = _destination(out, to, found.title)
    with reporter.bar(f"{found.title} to {to}", 0, 3):
        exported = _WRITERS[to](found, path, lambda done: reporter.advance(done, 3))
    if push is None:
        return exported
    reporter.say(f"pushing {path} to {push}")
    return Exported(exported.path, exported.files, exported.difference, push_folder(path, push))


def _write_entry(source: Path, out: str | Path | None, name: str | None, threat: str | Threat | None) -> Exported:
    found = _run_of(source)
    if found is None:
        raise UserError(f"{source} is no run; an entry is made of the AutoAttack record in a run folder")
    run, own = found
    path = _destination(out, "robustbench", run.folder.resolve().name)
    write_json(path, robustbench_entry(run, name or own, threat))
    return Exported(path, (path,))


def _destination(out: str | Path | None, to: str, title: str) -> Path:
    suffix = SUFFIXES[to]
    path = user_path(out) if out is not None else Path(f"{title}-hub" if to == "hub-folder" else f"{title}{suffix}")
    if to == "hub-folder":
        check_free(path)
        return path
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file to write, such as {path / ('model' + suffix)}")
    others = {other for other in SUFFIXES.values() if other and other != suffix}
    if path.suffix in others:
        raise UserError(f"{shown(str(path))} ends like another format; a file of {to} ends in {suffix}")
    return path if path.suffix == suffix else path.with_name(path.name + suffix)


def _run_of(path: Path) -> tuple[Run, str] | None:
    """The run of a folder, or the one that a model file is of, where it still lies in it; and the model's name."""
    if path.is_dir():
        return Run(path), GLOBAL
    stem = path.name.removesuffix(".json").removesuffix(".safetensors")
    paths = RunPaths(path.absolute().parent.parent)
    within = (
        paths.exists and paths.model_file(stem).is_file() and paths.model_file(stem).parent == path.absolute().parent
    )
    return (Run(paths.folder), stem) if within else None


def _source(path: Path, name: str | None) -> _Source:
    found = _run_of(path)
    if found is not None:
        run, own = found
        name = own if name is None else name
        model: Any = load(run.folder, name)
        title = run.folder.resolve().name + ("" if name == GLOBAL else f"-{name}")
        return _Source(title, name, model, run.model_digest(name), _public(read_extra(run.model_file(name))), run)
    model = load(path)
    weights = path.with_name(path.name.removesuffix(".json").removesuffix(".safetensors") + ".safetensors")
    return _Source(weights.stem, weights.stem, model, digest(weights.read_bytes()), _public(read_extra(path)))


def _public(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What lies beside a model, without the paths of this machine: it goes to other people."""
    shared = dict(extra)
    if isinstance(shared.get("data"), Mapping):
        shared["data"] = {**shared["data"], "root": None}
    if isinstance(shared.get("dial"), Mapping):
        endpoints = shared["dial"].get("endpoints", {})
        named = {name: {**one, "run": Path(one["run"]).name} for name, one in endpoints.items()}
        shared["dial"] = {**shared["dial"], "endpoints": named}
    return shared


def _facts(source: _Source, load_line: str) -> CardFacts:
    """All that the card of a model can say."""
    run, extra, spec = source.run, source.extra, source.model.spec
    data = extra.get("data") or {}
    return CardFacts(
        title=source.title,
        model=source.name,
        spec=spec.to_json(),
        load=load_line,
        data=str(data.get("name") or ""),
        classes=[str(label) for label in data.get("classes") or ()],
        weights_sha256=source.weights_sha256,
        parameters=sum(p.numel() for p in source.model.parameters()),
        selection=extra.get("selection") or {},
        records=_records(run, source.name) if run else (),
        summary=run.summary if run and run.finished else {},
        recipe=run.recipe.plain() if run else {},
        dial=extra.get("dial") or {},
        versions={"generalist": __version__, "torch": torch.__version__},
    )


def _records(run: Run, name: str) -> list[dict[str, Any]]:
    """The evaluations of the model as it is now."""
    found = []
    for record in run.suite_records(name):
        path = run.record_file(record["suite"], name)
        if is_outdated(run, path, record, name):
            warnings.warn(f"left out of the card: {path} is of other weights than the model has now", stacklevel=2)
        else:
            found.append(record)
    return found


Advance = Callable[[int], None]


def _write_safetensors(source: _Source, path: Path, advance: Advance) -> Exported:
    with TemporaryDirectory() as folder:
        tried = save_model(source.model, Path(folder) / path.name, extra=source.extra)
        advance(1)
        difference = largest_difference(source.model, load_model(tried), what=str(path))
    advance(2)
    card = _card_file(path, source, "safetensors")
    save_model(source.model, path, extra=source.extra)
    write_atomically(*card)
    return Exported(path, (path, path.with_suffix(".json"), card[0]), difference)


def _write_pt2(source: _Source, path: Path, advance: Advance) -> Exported:
    return _write_program(source, path, advance, "pt2", to_pt2, from_pt2)


def _write_onnx(source: _Source, path: Path, advance: Advance) -> Exported:
    return _write_program(source, path, advance, "onnx", to_onnx, from_onnx)


def _write_program(
    source: _Source, path: Path, advance: Advance, to: str, pack: Callable[..., bytes], unpack: Callable[..., Any]
) -> Exported:
    """Checked before it is written, so that a file that is there is right."""
    content = pack(source.model)
    advance(1)
    difference = largest_difference(source.model, unpack(content), what=str(path))
    advance(2)
    card = _card_file(path, source, to)
    write_atomically(path, content)
    write_atomically(*card)
    return Exported(path, (path, card[0]), difference)


def _card_file(path: Path, source: _Source, to: str) -> tuple[Path, bytes]:
    """The card that lies beside an exported file."""
    text = model_card(_facts(source, LOAD[to].format(file=path.name)))
    return path.with_suffix(".card.md"), text.encode()


def _write_hub_folder(source: _Source, path: Path, advance: Advance) -> Exported:
    program = to_pt2(source.model)
    advance(1)
    differences = [largest_difference(source.model, from_pt2(program), what=PROGRAM)]
    advance(2)
    with new_folder(path) as folder:
        write_atomically(folder / PROGRAM, program)
        save_model(source.model, folder / WEIGHTS, extra=source.extra)
        differences.append(largest_difference(source.model, load_model(folder / WEIGHTS), what=WEIGHTS))
        card = model_card(_facts(source, LOAD["pt2"].format(file=PROGRAM)))
        write_atomically(folder / CARD, card.encode())
        write_json(folder / CONFIG, _config(source))
    return Exported(path, tuple(sorted(path.iterdir())), max(differences))


def _config(source: _Source) -> dict[str, Any]:
    """What programs that list models ask for: the network, its classes by number, and what it takes."""
    spec = source.model.spec
    names = (source.extra.get("data") or {}).get("classes") or range(spec.classes)
    labels = {str(place): str(label) for place, label in enumerate(names)}
    return {
        "model_type": "generalist",
        "architectures": [spec.name],
        "num_labels": spec.classes,
        "id2label": labels,
        "label2id": {label: int(place) for place, label in labels.items()},
        "image_size": spec.size,
        "num_channels": spec.channels,
        "input_range": [0.0, 1.0],
        "normalization": "inside the model" if spec.mean is not None else "none",
        "spec": spec.to_json(),
    }


_WRITERS: dict[str, Callable[[_Source, Path, Advance], Exported]] = {
    "safetensors": _write_safetensors,
    "pt2": _write_pt2,
    "onnx": _write_onnx,
    "hub-folder": _write_hub_folder,
}
