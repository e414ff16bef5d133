"""Command lines with something wrong in them. Nothing is trained, and nothing but a tiny suite is run."""

import random
from pathlib import Path

from fuzz_guard import command
from fuzz_mutations import NUMBERS, TEXTS, broken_text

RUN, FAST = "RUN", "FAST"
"""Stand for a finished run's folder and for the file of a tiny suite."""

LINES: tuple[tuple[str, ...], ...] = (
    ("train", "digits-generalist-t", "--dry-run"),
    ("train", "digits-at", "--dry-run", "--set", "training.epochs=3", "--set", "learners.linf.objective.steps=2"),
    ("train", "digits-at", "--dry-run", "--ranks", "4", "--json", "--out", "x"),
    ("train", "digits-nt", "--set", "model.width=4", "--out", "y", "--resume", "--quiet"),
    ("train", "digits-nt", "--dry-run", "--set", "data.root=x", "--set", "data={name: npz, root: x}"),
    ("eval", RUN, "--suite", FAST, "--global", "--threat", "linf:1/4", "--n", "8"),
    ("eval", RUN, "--suite", FAST, "--learners", "--json", "r.json", "--n", "8", "--seed", "3"),
    ("eval", RUN, "--suite", FAST, "--global", "--batch-size", "7", "--n", "8", "--save-adv", "a.npz", "--quiet"),
    ("eval", RUN, "--suite", "autoattack", "--threat", "l2:1/2"),
    ("eval", f"{RUN}/models/global.safetensors", "--data", "digits", "--threat", "l2:1/2", "--suite", FAST, "--n", "8"),
    ("eval", "--model", "small_cnn", "--data", "digits", "--threat", "l1:2", "--suite", FAST, "--n", "8"),
    ("eval", "--model", "small_cnn", "--weights", f"{RUN}/models/linf.safetensors", "--data", "digits", "--n", "8"),
    ("compare", RUN, "--suite", "fast", "--json"),
    ("compare", RUN, "--paper", "I", "--csv", "a.csv", "--latex", "b.tex", "--markdown", "c.md"),
    ("compare", RUN, RUN, "--suite", "fast", "--scatter", "d.png"),
    ("front", RUN, RUN, "--suite", "fast", "--at", "50", "--at", "90", "--json"),
    ("front", RUN, "--group", "a=RUN", "--threat", "linf:1/4", "--csv", "e.csv", "--figure", "f.png"),
    ("report", RUN, "--out", "page.html", "--suite", "fast"),
    ("modules", "digits-at", "--set", "init.from=x.pt", "--out", "z", "--threat", "linf:1/4", "--workers", "1"),
    ("export", RUN, "--to", "safetensors", "--model", "linf", "--out", "w"),
    ("export", f"{RUN}/models/global.safetensors", "--to", "robustbench", "--threat", "linf:1/4", "--json"),
    ("recipes",),
    ("recipes", "--json"),
    ("recipes", "show", "digits-generalist-t", "--set", "seed=3"),
    ("doctor", "digits-nt", "--set", "model.width=4", "--json"),
    ("--version",),
    ("--help",),
)
FIELDS = (
    "seed", "name", "description", "select", "data", "data.name", "data.root", "data.size", "data.limit",
    "data.crop", "data.workers", "data.validation", "data.extra", "model", "model.name", "model.width",
    "model.options", "init.from", "training.epochs", "training.batch_size", "training.device", "training.precision",
    "training.accumulate", "needs", "track", "mixing.decay", "mixing.start", "mixing.every_epochs",
    "validation.threats", "validation.steps", "learners", "learners.linf.gamma", "learners.natural.objective",
    "learners.linf.objective.threat", "learners.natural.optimizer.lr", "learners.natural.schedule",
    "learners.natural.gamma", "learners.linf.objective.steps", "tasks", "extends", "x.y.z",
)  # fmt: skip
OPTIONS = (
    "--set", "--out", "--json", "--threat", "--n", "--seed", "--suite", "--model", "--data", "--weights",
    "--quiet", "--batch-size", "--ranks", "--paper", "--csv", "--device", "--help", "--nothing", "-q", "-x",
    "--", "--=",
)  # fmt: skip


def _value(random: random.Random) -> str:
    value = str(random.choice(random.choice([TEXTS, NUMBERS])))
    return value.replace("\0", "0")  # no argument of a process can hold it


def command_case(random: random.Random, folder: Path, *, run: Path, fast: Path) -> str:
    """One line of a command, changed in one to three places; in `folder`, where files may be written."""
    line = list(random.choice(LINES))
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        place = random.randrange(len(line))
        kind = random.randrange(9)
        if kind < 3:
            line[place] = _value(random)
        elif kind == 3:
            line[place:place] = [random.choice(OPTIONS), *([_value(random)] if random.random() < 0.7 else [])]
        elif kind == 4:
            del line[place]
        elif kind == 5:
            line.insert(random.randrange(len(line) + 1), line[place])
        elif kind == 6:
            random.shuffle(line)
        elif kind == 7:
            changed = broken_text(line[place][:200], random)[:2000].replace(b"\0", b"")
            line[place] = changed.decode(errors="surrogateescape")
        line = line or ["train"]
    if random.random() < 0.5 and line[0] in ("train", "recipes", "doctor"):
        line += ["--set", f"{random.choice(FIELDS)}={_value(random)}"]
    spelt = [part.replace(RUN, str(run)).replace(FAST, str(fast)) for part in line]
    if any(part in ("--download", "-") for part in spelt) or any("/dev" in part for part in spelt):
        return "command: left out"
    outcome = command(spelt)
    return f"command: exit code {outcome.code}"
