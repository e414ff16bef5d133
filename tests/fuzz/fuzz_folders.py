"""Run folders with one file damaged. What is damaged is refused or warned of; never is another number made of it."""

import json
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from fuzz_guard import Failure, Outcome, command
from fuzz_mutations import NUMBERS, broken_text, broken_tree

from generalist.report.console import Silent
from generalist.runs.train import train
from generalist.training.guards import Interrupted

SMALL = (
    "training.epochs=3", "training.batch_size=40", "data.limit=120", "model.width=4",
    "validation.images=40", "validation.steps=2", "validation.every_epochs=1",
)  # fmt: skip
RECIPE = "digits-generalist-t"
COST = ("seconds", "cpu_seconds", "peak_memory_mib", "forward", "backward", "costs", "environment", "versions", "run")
"""What may differ between two evaluations or trainings that are alike."""


class _Stop(Silent):
    """Ends a run after its second epoch, as a user would."""

    def epoch(self, epoch: int, epochs: int, text: str) -> None:
        if epoch == 2:
            signal.raise_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Base:
    """A finished and evaluated run, a half-finished one, each with another of another seed, and what they give."""

    finished: Path
    evaluated_again: Path
    """A copy of the finished run that command lines may write to."""
    half: Path
    others: dict[str, Path]
    fast: Path
    evaluated: Any
    compared: Any
    models: dict[str, dict[str, torch.Tensor]]
    selected: Any
    usual: frozenset[str]
    """What is warned of on this machine without any damage."""


def make_base(folder: Path) -> Base:
    fast = folder / "fast.yaml"
    fast.write_text("attacks: [{attack: pgd, steps: 2, label: PGD2}]\n")
    for seed in (0, 1):
        for kind in ("finished", "half"):
            out = folder / f"{kind}-{seed}"
            try:
                train(RECIPE, overrides=[*SMALL, f"seed={seed}"], out=out, reporter=_Stop() if kind == "half" else None)
            except Interrupted:
                pass
            else:
                command(["eval", str(out), "--global", "--suite", str(fast), "--n", "24", "--quiet"])
    finished, half = folder / "finished-0", folder / "half-0"
    evaluated, compared = _evaluate(finished, fast), _compare(finished, fast)
    whole = shutil.copytree(half, folder / "resumed")
    resumed = _resume(whole)
    for outcome in (evaluated, compared, resumed):
        assert outcome.code == 0, outcome.err
    usual = frozenset[str]().union(*(outcome.warnings for outcome in (evaluated, compared, resumed)))
    others = {"finished": folder / "finished-1", "half": folder / "half-1"}
    return Base(
        finished, shutil.copytree(finished, folder / "again"), half, others, fast,
        json.loads(evaluated.out), json.loads(compared.out), _models(whole), _selected(whole), usual,
    )  # fmt: skip


def _evaluate(run: Path, fast: Path) -> Outcome:
    return command(["eval", str(run), "--global", "--suite", str(fast), "--n", "24", "--json"])


def _compare(run: Path, fast: Path) -> Outcome:
    return command(["compare", str(run), "--suite", str(fast), "--json"])


def _resume(run: Path) -> Outcome:
    changes = [part for change in SMALL for part in ("--set", change)]
    return command(["train", RECIPE, *changes, "--set", "seed=0", "--out", str(run), "--resume", "--quiet"])


def _models(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.stem: safetensors.torch.load_file(path) for path in sorted((run / "models").glob("*.safetensors"))}


def _selected(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())["selected"]


def folder_case(random: random.Random, folder: Path, *, base: Base) -> str:
    """One file of a copy damaged; then what reads it is run, and its numbers are held against the undamaged ones."""
    kind = random.choice(["finished", "half"])
    run = shutil.copytree(base.finished if kind == "finished" else base.half, folder / "run")
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix != ".png" and path.name != ".lock")
    files = [path for path in files if "tensorboard" not in path.parts]
    file = random.choice(files)
    what = f"{_damage(file, base.others[kind] / file.relative_to(run), random)} of {file.relative_to(run)}"
    try:
        if kind == "half":
            return f"folder, resumed: {_check_resumed(run, base)}"
        evaluated, compared = _evaluate(run, base.fast), _compare(run, base.fast)
        _check_numbers(evaluated, base.evaluated, base.usual, "eval")
        _check_numbers(compared, base.compared, base.usual, "compare")
        return f"folder, evaluated: exit codes {evaluated.code} and {compared.code}"
    except Failure as failure:
        raise Failure(f"{kind} run, {what}: {failure}") from None


def _check_numbers(outcome: Outcome, expected: Any, usual: frozenset[str], what: str) -> None:
    if outcome.code or outcome.warnings - usual:
        return
    found = json.loads(outcome.out)
    if set(found.get("notes", ())) - set(expected.get("notes", ())):  # where a comparison has its warnings
        return
    difference = _difference(expected, found, what)
    if difference:
        raise Failure(f"another number without a word: {difference}")


def _difference(expected: Any, found: Any, where: str) -> str | None:
    """The first value that is another one; what is missing is not used, so it is no difference."""
    if found is None or where.rsplit(".")[-1] in COST:
        return None
    if where.endswith(".columns"):
        found, expected = sorted(found), sorted(set(expected) & set(found))
    if isinstance(expected, dict) and isinstance(found, dict):
        pairs = [(str(key), expected[key], found[key]) for key in expected if key in found]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(expected, found, strict=True))]
    else:
        return None if expected == found else f"{where} is {found!r}, not {expected!r}"
    return next((said for key, a, b in pairs if (said := _difference(a, b, f"{where}.{key}"))), None)


def _check_resumed(run: Path, base: Base) -> str:
    resumed = _resume(run)
    if resumed.code or resumed.warnings - base.usual:
        return f"exit code {resumed.code}, said so"
    try:
        models = _models(run)
    except (OSError, safetensors.SafetensorError) as error:
        raise Failure(f"a model that cannot be read is left, without a word: {error}") from None
    if list(models) != list(base.models):
        raise Failure(f"models {list(models)} instead of {list(base.models)}, without a word")
    for name, tensors in base.models.items():
        for key, tensor in tensors.items():
            if key not in models[name] or not torch.equal(tensor, models[name][key]):
                raise Failure(f"another {key} of model {name} after resuming, without a word")
    difference = _difference(base.selected, _selected(run), "selected")
    if difference:
        raise Failure(f"another number without a word: {difference}")
    return "as undamaged"


def _damage(file: Path, other: Path, random: random.Random) -> str:
    """Do one kind of harm; gives back which."""
    content = file.read_bytes()
    kinds = ["flipped", "cut", "empty", "gone", "folder", "swapped", "doubled", "not text", "extended"]
    if file.suffix in (".json", ".jsonl", ".yaml"):
        kinds += ["edited"] * 8 + ["broken text"] * 3
    kind = random.choice(kinds)
    if kind == "flipped":
        changed = bytearray(content or b"x")
        for _ in range(random.choice([1, 1, 5])):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        file.write_bytes(changed)
    elif kind == "cut":
        file.write_bytes(content[: random.randrange(len(content) + 1)])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "gone":
        file.unlink()
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    elif kind == "swapped":
        beside = [path for path in sorted(file.parent.iterdir()) if path.is_file() and path != file]
        if other.is_file() or beside:
            shutil.copy(other if other.is_file() else random.choice(beside), file)
    elif kind == "doubled":
        file.write_bytes(content + content)
    elif kind == "not text":
        place = random.randrange(len(content) + 1)
        file.write_bytes(content[:place] + b"\xff\xfe" + content[place:])
    elif kind == "extended":
        file.write_bytes(content + random.choice([b"\n", b"\0", b"{}", b"x" * 5000, b"\n{}\n", b"[]"]))
    elif kind == "broken text":
        file.write_bytes(broken_text(content.decode(), random))
    else:
        file.write_bytes(_edited(file, content, random))
    return kind


def _edited(file: Path, content: bytes, random: random.Random) -> bytes:
    """One JSON value changed, most often into another of its own type, which only a digest can tell."""
    if file.suffix == ".yaml":
        return content.replace(b"0", str(random.choice(NUMBERS)).encode(), random.choice([1, -1]))
    lines = content.splitlines() if file.suffix == ".jsonl" else [content]
    if not lines:
        return content
    place = random.randrange(len(lines))
    tree = json.loads(lines[place])
    changed = broken_tree(tree, random) if random.random() < 0.4 else _nudged(tree, random)
    try:
        lines[place] = json.dumps(changed).encode()
    except TypeError:  # a key that JSON has no form for
        lines[place] = json.dumps(_nudged(tree, random)).encode()
    return b"\n".join(lines) + b"\n"


def _nudged(tree: Any, random: random.Random) -> Any:
    """The tree with one number or text a little different."""
    leaves = []

    def walk(inside: Any) -> None:
        for key, value in inside.items() if isinstance(inside, dict) else enumerate(inside):
            if isinstance(value, dict | list):
                walk(value)
            else:
                leaves.append((inside, key))

    if isinstance(tree, dict | list):
        walk(tree)
    if leaves:
        inside, key = random.choice(leaves)
        value = inside[key]
        if isinstance(value, bool) or value is None:
            inside[key] = not value
        elif isinstance(value, int | float):
            inside[key] = random.choice([value + 1, -value, value * 2, 0 if value else 1])
        else:
            inside[key] = value[::-1] + "0"
    return tree
