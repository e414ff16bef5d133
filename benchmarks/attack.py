"""AutoAttack against its authors' own code, side by side: the same model, the same images, verdicts compared.

    make bench        or        OMP_NUM_THREADS=1 python benchmarks/attack.py [--images 200] [--data CIFAR-10 root]

ResNet-18 of width 16, float32, one thread, CPU time. One model is trained adversarially first (a few hundred steps on
CIFAR-10 if `--data` has it, else on digits enlarged to 32×32), one naturally and longer: where a model is not robust,
images whose fate is decided must stop costing anything.
"""

import argparse
import contextlib
import io
import os
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import generalist
from generalist.attacks import autoattack, misclassified
from generalist.build import build

PEER = "pyautoattack"
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

    seconds, verdicts = {}, {}
    for name, run in (("ours", ours), (PEER, theirs)):
        started = time.process_time()
        x_adv = run()
        seconds[name] = time.process_time() - started
        verdicts[name] = ~misclassified(model, x_adv, y)
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
