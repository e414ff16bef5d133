"""What a step of each method costs, relative to a step of AT in the same run.

    OMP_NUM_THREADS=1 python benchmarks/methods.py [--rounds 5] [--markdown]

ResNet-18 of width 16, batches of 64 digits enlarged to 32×32, float32, one thread, CPU time; late in training, when
what begins late has begun. Every round steps each method once, AT before each of them; a ratio is that of the two
medians. Beside it the passes that `generalist doctor` and `--dry-run` count with.
"""

import argparse
import os
import time
from fractions import Fraction
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from generalist import load_recipe, recipe_names
from generalist.recipes.cost import AT_PASSES, passes_per_step
from generalist.runs.experiment import Experiment, build

LATE = Fraction(95, 100)
SETS = ["data.size=32", "model.name=resnet18", "model.width=16", "training.precision=float32"]


def seconds(experiment: Experiment, index: int) -> float:
    (learner,) = experiment.state.learners.values()
    batch = next(experiment.feed(0))
    started = time.process_time()
    learner.step(batch, progress=LATE, key=("benchmark", index))
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in recipe_names() if name.startswith("digits-")]
    recipes = {name.removeprefix("digits-"): load_recipe(name, SETS) for name in names}
    recipes = {name: recipe for name, recipe in recipes.items() if len(recipe.learners) == 1}
    reference = build(recipes["at"])
    rows = {}
    for name, recipe in recipes.items():
        experiment = build(recipe)
        times = [(seconds(reference, index), seconds(experiment, index)) for index in range(options.rounds + 1)][1:]
        (section,) = recipe.learners.values()
        passes = passes_per_step(section) / AT_PASSES
        rows[name] = (passes, median(mine for _, mine in times) / median(at for at, _ in times))
        if not options.markdown:
            print(f"{name:<12} passes {rows[name][0]:5.2f}   CPU time {rows[name][1]:5.2f}   × AT", flush=True)
    if options.markdown:
        print("| method | passes, × AT | CPU time, × AT |\n|---|---|---|")
        for name, (passes, ratio) in sorted(rows.items(), key=lambda row: row[1][1]):
            print(f"| {name} | {passes:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
