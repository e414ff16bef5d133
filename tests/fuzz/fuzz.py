"""Mutated recipes and command lines, damaged run folders: `make fuzz`.

Every case is a function of (seed, kind, index); `--only recipe:17` shows one again. Exits with 1 if any case failed.
"""

import argparse
import contextlib
import functools
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from fuzz_commands import command_case
from fuzz_folders import Base, folder_case, make_base
from fuzz_guard import Failure, stream
from fuzz_recipes import attack_case, recipe_case, suite_case, training_case

from generalist.core.errors import UserError
from generalist.data import DATASETS
from generalist.report import figures
from generalist.runs import doctor, recorder
from generalist.runs import evaluate as runs_evaluate
from generalist.runs import train as runs_train

Case = Callable[..., str]
SHARES = {"recipe": 0.74, "suite": 0.1, "command": 0.15, "training": 0.005, "attack": 0.005}
"""Of the mutations; most are read without the command line, which is hundreds of them a second."""
MEMORY = 12 * 2**30


@contextlib.contextmanager
def _nothing_long() -> Iterator[None]:
    """What takes long and is not looked at here: data read anew, figures, TensorBoard, probes, whole attacks."""
    entries = DATASETS._entries
    before = entries["digits"], figures.draw_run, recorder.open_trackers, doctor.PROBE_SECONDS
    entries["digits"] = functools.cache(before[0])
    figures.draw_run = lambda *args, **options: None  # type: ignore[assignment]
    recorder.open_trackers = lambda *args, **options: []
    doctor.PROBE_SECONDS = 0.01
    try:
        yield
    finally:
        entries["digits"], figures.draw_run, recorder.open_trackers, doctor.PROBE_SECONDS = before


@contextlib.contextmanager
def _nothing_trained() -> Iterator[None]:
    before = runs_train.train, runs_evaluate.evaluate_suite

    def train(*args: Any, **options: Any) -> Any:
        raise UserError("not trained here")

    def evaluate(model: Any, split: Any, suite: Any, **options: Any) -> Any:
        if suite.name != "fast" or (options["limit"] or 1000) > 50:
            raise UserError("not attacked here")
        return before[1](model, split, suite, **options)

    runs_train.train, runs_evaluate.evaluate_suite = train, evaluate
    try:
        yield
    finally:
        runs_train.train, runs_evaluate.evaluate_suite = before


def _run(kind: str, index: int, seed: int, base: Base | None, place: Path) -> str:
    """One case, in an empty folder of its own which is also the current one; nothing may be written beside it."""
    folder = place / "case" / "inner"
    folder.mkdir(parents=True)
    os.chdir(folder)
    draw = stream(seed, kind, index)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is called without the command line, which shows its own
            if kind == "recipe":
                done = recipe_case(draw, folder)
            elif kind == "suite":
                done = suite_case(draw, folder)
            elif kind == "attack":
                assert base is not None
                done = attack_case(draw, folder, run=base.evaluated_again)
            elif kind == "training":
                done = training_case(draw, folder)
            elif kind == "command":
                assert base is not None
                with _nothing_trained():
                    done = command_case(draw, folder, run=base.evaluated_again, fast=base.fast)
            else:
                assert base is not None
                done = folder_case(draw, folder, base=base)
        if [path.name for path in folder.parent.iterdir()] != ["inner"]:
            raise Failure(f"wrote outside its folder: {[path.name for path in folder.parent.iterdir()]}")
        return done
    finally:
        os.chdir(place)
        shutil.rmtree(place / "case")


def _cases(mutations: int, corruptions: int) -> Iterator[tuple[str, int]]:
    """Kinds mixed, so that a run that time ends early has seen all of them."""
    counts = {kind: round(share * mutations) for kind, share in SHARES.items()} | {"folder": corruptions}
    order = sorted((index / count, kind, index) for kind, count in counts.items() for index in range(count))
    return ((kind, index) for _, kind, index in order)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutations", type=int, default=2000, help="of recipes, suites and command lines")
    parser.add_argument("--corruptions", type=int, default=200, help="of run folders")
    parser.add_argument("--seconds", type=float, default=900, help="no case begins after so long")
    parser.add_argument("--only", metavar="KIND:INDEX", action="append", help="these cases alone")
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    started, counts, failures = time.monotonic(), Counter[str](), 0
    cases: Any = [(kind, int(index)) for kind, index in (case.split(":") for case in given.only or [])]
    cases = cases or list(_cases(given.mutations, given.corruptions))
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch, _nothing_long():
        place = Path(scratch)
        os.environ["GENERALIST_CACHE"] = str(place / "cache")
        base = make_base(place) if any(kind in ("attack", "command", "folder") for kind, _ in cases) else None
        for done, (kind, index) in enumerate(cases):
            if time.monotonic() - started > given.seconds:
                print(f"stopped after {done} of {len(cases)} cases: {given.seconds:g} seconds are over")
                break
            try:
                counts[_run(kind, index, given.seed, base, place)] += 1
            except Exception as failure:  # of another kind if the fuzzer itself is at fault
                failures += 1
                what = str(failure) if isinstance(failure, Failure) else traceback.format_exc()
                print(f"FAILED --seed {given.seed} --only {kind}:{index}\n  {what.strip()}", flush=True)
        os.chdir(home)
    for outcome, count in sorted(counts.items()):
        print(f"{count:7d}  {outcome}")
    took = time.monotonic() - started
    print(f"{sum(counts.values())} cases as they should be, {failures} failed, {took:.0f} s, seed {given.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
