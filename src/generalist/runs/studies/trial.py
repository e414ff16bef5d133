"""One trial: an ordinary run, trained or gone on with, then attacked; and what of it a study keeps."""

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from generalist.core.errors import RunError, one_line
from generalist.core.files import digest, write_atomically
from generalist.core.names import MEAN, OOD, UNION
from generalist.evaluation.classwise import class_names, labels_of
from generalist.evaluation.records import robust_images
from generalist.models import read_extra
from generalist.report.comparison import NATURAL
from generalist.report.console import Silent
from generalist.runs.analyses import analysis_named, keep_analysis
from generalist.runs.evaluate import evaluate_target
from generalist.runs.folder import Run
from generalist.runs.paths import GLOBAL
from generalist.runs.studies.cost import Seconds
from generalist.runs.studies.plan import Trial
from generalist.runs.targets import run_target
from generalist.runs.train import train

Result = Mapping[str, Any]
"""What a study keeps of a trial, in JSON types; no file of the run is needed for tables and figures."""


class ShareReporter(Silent):
    """Turns the progress of training and evaluation into the share of the trial that is done."""

    def __init__(self, seconds: Seconds, tell: Callable[[float], None]) -> None:
        self._trained = (seconds.training + seconds.validation) / max(seconds.total, 1e-9)
        self._tell, self._attacked = tell, (0.0, 1.0)

    def advance(self, done: float, total: int, *, share: float | None = None) -> None:
        self._tell(self._trained * (done / max(total, 1) if share is None else share))

    def attack(self, suite: int, suites: int) -> None:
        """The suite of that number, from 0, comes next."""
        self._attacked = suite / suites, 1 / suites

    def stage(self, standing: Any) -> None:
        within = (standing.number - 1 + standing.done / max(standing.total, 1)) / max(standing.stages, 1)
        start, length = self._attacked
        self._tell(self._trained + (1 - self._trained) * (start + length * min(1.0, max(0.0, within))))


def run_trial(trial: Trial, *, download: bool = False, reporter: ShareReporter) -> Result:
    """Train the run of a trial, or go on with it, and attack it. What is there already is not done again."""
    run = _trained(trial, download=download, reporter=reporter)
    suites, parts = trial.judged.loaded, len(trial.judged.suites)
    target = run_target(run, GLOBAL, (), download=download)
    for number, suite in enumerate(suites):
        reporter.attack(number, parts)
        evaluate_target(target, suite, images=trial.judged.images, reporter=reporter)
    if trial.judged.ood:
        analysis = analysis_named(OOD)
        reporter.attack(parts - 1, parts)
        keep_analysis(target, analysis, analysis.measure(target, images=trial.judged.images))
    return result_of(run, [suite.name for suite in suites], ood=trial.judged.ood)


def _trained(trial: Trial, *, download: bool, reporter: ShareReporter) -> Run:
    """What it starts from comes first: another machine may have trained that on a disk that is not ours."""
    if trial.after is not None:
        _trained(trial.after, download=download, reporter=reporter)
    if trial.ranks > 1:
        return _train_by_ranks(trial, download=download, reporter=reporter)
    return train(trial.recipe, out=trial.folder, resume=True, download=download, reporter=reporter)


OOD_FIGURES = {
    "severity 5": "severity5",
    "all severities": "mean",
    "sequences": "sequences_accuracy",
    "flip rate": "flip_rate",
}
"""A column → the figure of the record that it shows."""


def result_of(run: Run, suites: list[str], *, ood: bool = False) -> Result:
    """The figures of a run, with the verdicts of its images as bits, for comparisons that are paired image by image."""
    records = [run.record(suite) for suite in suites]
    corrupted = [run.analysis(OOD)] if ood else []
    first, summary = [*records, *corrupted][0], run.summary
    accuracy: dict[str, float] = {NATURAL: first["natural"]}
    bits: dict[str, str] = {}
    verdicts: dict[str, Tensor] = {}
    for record in records:
        natural, robust = robust_images(record)
        verdicts[NATURAL] = natural
        bits[NATURAL] = pack(natural)
        for threat, columns in robust.items():
            for attack, kept in columns.items():
                accuracy[column_name(attack, threat)] = record["accuracy"][threat][attack]
                bits[column_name(attack, threat)] = pack(kept)
        last = list(record["columns"])[-1]
        for union in (MEAN, UNION):
            if union in record["accuracy"]:
                accuracy[union] = record["accuracy"][union][last]
        for threat in robust:
            verdicts[threat] = robust[threat][last]
        if len(robust) > 1:
            verdicts[UNION] = torch.stack([columns[last] for columns in robust.values()]).all(0)
            bits[UNION] = pack(verdicts[UNION])
    for record in corrupted:
        accuracy |= {column: record[figure] for column, figure in OOD_FIGURES.items()}
        verdicts[NATURAL] = torch.tensor([bit == "1" for bit in record["per_image"]["natural"]])
        bits[NATURAL] = pack(verdicts[NATURAL])
    return {
        "accuracy": accuracy,
        "images": first["images"],
        "examples": digest("\n".join(first["examples"]).encode()),
        "bits": bits,
        "classes": _by_class(run, first, verdicts),
        "data": first.get("data", run.recipe.data.name),
        "seconds": summary["seconds"],
        "cpu_seconds": summary["cpu_seconds"],
        "cost_in_at": summary["cost_in_at"],
        "parameters": summary["parameters"],
        "peak_memory_mib": summary["peak_memory_mib"],
        "selected_by": summary["selected_by"],
        "red_flags": [flag["message"] for record in (*records, *corrupted) for flag in record["red_flags"]],
        "folder": str(run.folder),
    }


def column_name(attack: str, threat: str) -> str:
    return f"{attack} {threat}"


def pack(verdicts: Tensor) -> str:
    """Bits [N] as text."""
    return base64.b64encode(np.packbits(verdicts.numpy().astype(bool)).tobytes()).decode()


def unpack(text: str, images: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8), count=images)
    return torch.from_numpy(bits.astype(bool))


def _by_class(run: Run, record: Mapping[str, Any], verdicts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Names, and per measure the accuracy of each class; None for a class without images."""
    labels = torch.from_numpy(labels_of(record))
    data = read_extra(run.model_file().with_suffix("")).get("data")
    known = data.get("classes", []) if isinstance(data, Mapping) else []
    count = max(len(known), int(labels.max()) + 1)
    names = class_names(known, count)
    of_class = [labels == label for label in range(count)]
    found = {
        measure: [round(100 * float(right[own].float().mean()), 2) if own.any() else None for own in of_class]
        for measure, right in verdicts.items()
    }
    return {"names": list(names), "accuracy": found}


def _train_by_ranks(trial: Trial, *, download: bool, reporter: ShareReporter) -> Run:
    """With several processes by torchrun, which go on by themselves from the last checkpoint."""
    recipe = trial.folder.with_name(f"{trial.folder.name}.yaml")
    write_atomically(recipe, trial.recipe.to_yaml().encode())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(trial.ranks)]
    command += ["-m", "generalist", "train", str(recipe), "--out", str(trial.folder), "--resume", "--quiet"]
    command += ["--download"] if download else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with _ended(
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ) as process:
        while process.poll() is None:
            with suppress(Exception):  # a line may be half written
                epochs = [row["epoch"] for row in Run(trial.folder).metrics if row["kind"] == "epoch"]
                reporter.advance(max(epochs, default=0), trial.recipe.training.epochs)
            time.sleep(0.2)
        assert process.stderr is not None
        said = process.stderr.read()
    if process.returncode:
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        raise RunError(one_line(errors[0] if errors else f"torchrun ended with {process.returncode}: {said[-300:]}"))
    recipe.unlink(missing_ok=True)
    return Run(trial.folder)


@contextmanager
def _ended(process: "subprocess.Popen[str]") -> Any:
    """The process ends with the block; signals that ask us to stop are passed on first."""
    try:
        yield process
    except BaseException:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        raise
