"""AutoAttack against its authors' own code, side by side: the same model, the same images, verdicts compared.

    make bench        or        OMP_NUM_THREADS=1 python benchmarks/attack.py [--images 200] [--data CIFAR-10 root]

ResNet-18 of width 16, float32, one thread, CPU time. One model is trained adversarially first (a few hundred steps on
CIFAR-10 if `--data` has it, else on digits enlarged to 32×32), one naturally and longer: where a model is not robust,
images whose fate is decided must stop costing anything. The two take turns of a second, each in a process of its own:
how fast a shared machine is changes from minute to minute, and that hits both alike.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import generalist
from generalist.attacks import autoattack, misclassified
from generalist.runs.experiment import build

PEER = "pyautoattack"
TURN = 1.0  # seconds
NATURAL_EPOCHS = 5  # times as many as adversarially: they cost a fifth, and a model that knows little yields late


def trained(
    method: str, data: str | None, epochs: int, folder: Path
) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    source = (
        ["data.name=cifar10", f"data.root={data}", "data.limit=6000"] if data else ["data.name=digits", "data.size=32"]
    )
    epochs *= 1 if method == "at" else NATURAL_EPOCHS
    common = [f"training.epochs={epochs}", "model.width=16", "training.precision=float32", "validation.images=50"]
    common += ["validation.every_epochs=100", "mixing.decay=0.98", "select=last", "data.flip=false", "data.crop=0"]
    robust = [
        "learners.linf.optimizer.lr=0.05",
        "learners.linf.objective.steps=4",
        "learners.linf.optimizer.weight_decay=5e-4",
    ]
    sets = [*source, *common, *(robust if method == "at" else [])]
    recipe = generalist.load_recipe(f"cifar10-resnet18-{method}", sets)
    model = generalist.train(recipe, out=folder / method).model()
    split = build(recipe).dataset.test
    images = split.read(torch.arange(len(split)))
    return model, images.float() / 255, split.labels


def taking_turns(runs: dict[str, Callable[[], torch.Tensor]]) -> dict[str, tuple[float, torch.Tensor]]:
    """CPU seconds and result of each run; while one works, the others are stopped."""
    fork = multiprocessing.get_context("fork")
    found: dict[str, tuple[float, torch.Tensor]] = {}

    def work(run: Callable[[], torch.Tensor], pipe: multiprocessing.connection.Connection) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        started = time.process_time()
        result = run()
        pipe.send((time.process_time() - started, result.numpy()))

    ends, processes = {}, {}
    for name, run in runs.items():
        ends[name], other = fork.Pipe(duplex=False)
        processes[name] = fork.Process(target=work, args=(run, other), daemon=True)
        processes[name].start()
        other.close()
    while waiting := [name for name in runs if name not in found]:
        for name in waiting:
            os.kill(processes[name].pid or 0, signal.SIGCONT)
            if ends[name].poll(TURN):
                seconds, result = ends[name].recv()
                found[name] = seconds, torch.from_numpy(result)
            else:
                os.kill(processes[name].pid or 0, signal.SIGSTOP)
    return found


def compare(title: str, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, threat: generalist.Threat) -> None:
    import pyautoattack

    def ours() -> torch.Tensor:
        return autoattack(model, x, y, threat=threat)

    def theirs() -> torch.Tensor:
        norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
        with contextlib.redirect_stdout(io.StringIO()):
            attack = pyautoattack.AutoAttack(model, norm=norm, eps=threat.radius, device="cpu", seed=0)
            attack.verbose = False
            return attack.run_standard_evaluation(x, y, batch_size=len(x))[0]

    found = taking_turns({"ours": ours, PEER: theirs})
    seconds = {name: taken for name, (taken, _) in found.items()}
    verdicts = {name: ~misclassified(model, x_adv, y) for name, (_, x_adv) in found.items()}
    clean = (~misclassified(model, x, y)).float().mean().item()
    same = (verdicts["ours"] == verdicts[PEER]).float().mean().item()
    print(f"{title}, {threat}: {len(x)} images, clean {clean:.1%}")
    for name in seconds:
        print(f"  {name:<14} {seconds[name]:8.1f} s   robust {verdicts[name].float().mean().item():.1%}")
    print(f"  {PEER} / ours   {seconds[PEER] / seconds['ours']:8.2f}     verdicts alike {same:.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--data", help="a folder with CIFAR-10; digits enlarged to 32×32 if not given")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", choices=["at", "nt"], help="one of the two models")
    parser.add_argument("--threat", action="append", help="linf:8/255 if not given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    threats = [generalist.Threat.parse(text) for text in options.threat or ["linf:8/255"]]
    with tempfile.TemporaryDirectory() as folder:
        titles = {"at": "trained adversarially", "nt": "trained naturally"}
        for method in [options.only] if options.only else titles:
            model, x, y = trained(method, options.data, options.epochs, Path(folder))
            for threat in threats:
                compare(titles[method], model, x[: options.images], y[: options.images], threat)


if __name__ == "__main__":
    main()
