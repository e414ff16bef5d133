"""Several processes against one, and the two constants of the cost model, measured on this machine.

    python benchmarks/ranks.py [--rounds 3] [--epochs 6]      measures
    python benchmarks/ranks.py --table                         the predictions of docs/many-machines.md

Generalist-D (ℓ∞ and ℓ2), both learners live, ResNet-18 of width 16 on digits enlarged to 32×32: by one process of one
thread, and by two of one thread each, in turn. Wall time of the epochs as the run's own journal has it, checkpoints
included, the first epoch left out; the ratio of the medians.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from generalist import build_model, load_recipe
from generalist.recipes.cost import passes_per_step
from generalist.training.scaling import EFFICIENCY, LATENCY, Job, Machines, epoch, epoch_mixed_every_step

NAME = "digits-generalist-d-norms"
SETS = ["data.size=32", "model.name=resnet18", "model.width=16", "training.precision=float32", "training.device=cpu",
        "mixing.train_idle=true", "mixing.every_epochs=1", "validation.every_epochs=1000", "validation.images=10",
        "select=last"]  # fmt: skip
IMAGES = 320
GPU = 60e12
"""FLOP/s of a matrix product that the table supposes of a GPU; not measured here."""


def torchrun(count: int) -> list[str]:
    found = ["--nproc-per-node", str(count), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return [sys.executable, "-m", "torch.distributed.run", *found]


def epoch_seconds(count: int, epochs: int) -> list[float]:
    """Of every epoch but the first, from the journal of a real run with so many processes."""
    sets = [*SETS, f"training.epochs={epochs}", f"data.limit={IMAGES}"]
    options = [part for override in sets for part in ("--set", override)]
    launch = torchrun(count) if count > 1 else [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [*launch, "-m", "generalist", "train", NAME, *options, "--out", str(out), "--quiet"]
        subprocess.run(command, check=True, capture_output=True)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    marks = [row["seconds"] for row in rows if row["kind"] == "epoch"]
    return [after - before for before, after in pairwise(marks)]


def flops_of_forward(model: torch.nn.Module, channels: int, size: int) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, channels, size, size))
    return float(counter.get_total_flops())


def matrix_speed() -> float:
    """FLOP/s of a large matrix product with one thread, the best of several."""
    a, b, size = torch.rand(1024, 1024), torch.rand(1024, 1024), 1024
    taken = []
    for _ in range(20):
        started = time.perf_counter()
        a @ b
        taken.append(time.perf_counter() - started)
    return 2 * size**3 / min(taken)


def latency() -> float:
    """Seconds of an all-reduce of one number between two processes."""
    done = subprocess.run([*torchrun(2), __file__, "--latency"], check=True, capture_output=True, text=True)
    return float(done.stdout)


def print_latency() -> None:
    dist.init_process_group("gloo")
    number, taken = torch.zeros(1), []
    for _ in range(500):
        started = time.perf_counter()
        dist.all_reduce(number)
        taken.append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        print(median(taken))
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an orderly exit


def measure(rounds: int, epochs: int) -> None:
    recipe = load_recipe(NAME, [*SETS, f"data.limit={IMAGES}"])
    model = build_model("resnet18", classes=10, channels=1, size=32, width=16)
    passes = {name: passes_per_step(section) for name, section in recipe.learners.items()}
    images = IMAGES - round(IMAGES * recipe.data.validation)
    taken: dict[int, list[float]] = {1: [], 2: []}
    speeds = []
    for _ in range(rounds):
        for count in taken:
            speeds.append(matrix_speed())
            taken[count] += epoch_seconds(count, epochs)
    one, two = median(taken[1]), median(taken[2])
    flops = sum(passes.values()) * images * 2 * flops_of_forward(model, 1, 32)
    speed = median(speeds)
    print(f"an epoch, one process   {one:.3f} s")
    print(f"an epoch, two processes {two:.3f} s")
    lowest, highest = min(taken[1]) / max(taken[2]), max(taken[1]) / min(taken[2])
    print(f"ratio                   {one / two:.2f}  (from {lowest:.2f} to {highest:.2f})")
    reached = flops / one / speed
    print(f"efficiency              {reached:.3f}  of {speed / 1e9:.0f} GFLOP/s; the model has {EFFICIENCY}")
    print(f"latency                 {latency() * 1e6:.0f} µs; the model has {LATENCY * 1e6:.0f}")


def duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def size_of(count: float) -> str:
    return f"{count / 1e12:.3g} TB" if count >= 1e12 else f"{count / 1e9:.3g} GB"


def table() -> None:
    """Seconds an epoch, as Markdown: ours, and with an all-reduce of the mixed parameters in every step."""
    jobs = {
        "ResNet-18, CIFAR-10": ("resnet18", 32, 10, 11, 128, 45_000 // 128),
        "ResNet-50, ImageNet": ("resnet50", 224, 1000, 4, 128, 1_276_000 // 128),
    }
    for title, (name, size, classes, attacked, batch, steps) in jobs.items():
        model = build_model(name, classes=classes, channels=3, size=size)
        parameters, flops = sum(p.numel() for p in model.parameters()), flops_of_forward(model, 3, size)
        print(f"\n**{title}** ({parameters / 1e6:.1f} M parameters, {flops / 1e9:.2f} GFLOP forward, batch {batch})\n")
        print("| learners | GPUs | 1 Gbit/s | 10 Gbit/s | 100 Gbit/s | sent in an epoch |")
        print("|---:|---:|---:|---:|---:|---:|")
        for count in (2, 3, 5, 10):
            passes = {"natural": 1.0, **{f"attacked-{index}": float(attacked) for index in range(count - 1)}}
            job = Job(passes=passes, parameters=parameters, flops=flops, batch_size=batch, steps=steps)
            for ranks in (1, 2, 4, 8, 16, 64):
                cells = []
                for gigabits in (1, 10, 100):
                    machines = Machines(ranks=ranks, flops=GPU, bits=gigabits * 1e9)
                    ours, every = epoch(job, machines), epoch_mixed_every_step(job, machines)
                    cells.append(duration(ours.seconds) + (f" ({duration(every.seconds)})" if ranks > 1 else ""))
                sent = f"{size_of(ours.sent)} ({size_of(every.sent)})" if ranks > 1 else "–"
                print(f"| {count} | {ranks} | {' | '.join(cells)} | {sent} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--latency", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.latency:
        print_latency()
    elif given.table:
        table()
    else:
        measure(given.rounds, given.epochs)


if __name__ == "__main__":
    main()
