"""One adversarial training step against the textbook loop and against its bare model passes, as ratios in one run.

    make bench        or        OMP_NUM_THREADS=1 python benchmarks/step.py [--json FILE]

CPU time of one thread, medians over rounds in which every contestant runs once, so that a slow moment of the machine
hits all of them. ResNet-18 of width 16 at 32×32, batch 64, PGD-10.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F

from generalist import Batch, Learner, Mix, MixPlan, Threat, build_model
from generalist.attacks.criteria import cross_entropy
from generalist.attacks.view import attack_view, loss_and_gradient
from generalist.mixing import REST, Points, Share
from generalist.models.modules import Patterns, select_tensors
from generalist.objectives import adversarial, natural
from generalist.training.precision import cpu_has_fast_bf16, pick_precision

BATCH, STEPS, EPS = 64, 10, Fraction(8, 255)
LATE = ("layer4.1", "fc")  # what a late natural learner trains


def network() -> torch.nn.Module:
    return build_model("resnet18", classes=10, channels=3, size=32, width=16, seed=0)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(BATCH, 3, 32, 32, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def textbook() -> Callable[[], None]:
    """The loop one finds: float32, NCHW, loss.backward() in the attack, EMA over the state_dict."""
    model = network().to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=3.5e-3)
    average = {key: value.clone() for key, value in model.state_dict().items()}
    x, y = images()
    eps, step = float(EPS), float(EPS) / 4

    def one() -> None:
        model.eval()
        x_adv = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        for _ in range(STEPS):
            x_adv = x_adv.detach().requires_grad_()
            model.zero_grad()
            F.cross_entropy(model(x_adv), y).backward()
            x_adv = x_adv.detach() + step * x_adv.grad.sign()
            x_adv = torch.min(torch.max(x_adv, x - eps), x + eps).clamp(0, 1)
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x_adv), y).backward()
        optimizer.step()
        for key, value in model.state_dict().items():
            average[key] = 0.999 * average[key] + 0.001 * value if value.is_floating_point() else value.clone()

    return one


class Ours:
    """Learners on their tasks and the mix, as the training loop runs them."""

    def __init__(self, names: list[str], precision: torch.dtype) -> None:
        threats = {"linf": Threat("linf", EPS), "l2": Threat("l2", Fraction(128, 255))}
        optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=3.5e-3)
        self.learners = [
            Learner(
                name,
                model,
                partial(adversarial, threat=threats[name], steps=STEPS) if name in threats else natural,
                optimizer,
                lr=0.01,
                schedule=lambda progress: 1.0,
                precision=precision,
                trained=select_tensors(model, Patterns(LATE)) if name == "late" else None,
            )
            for name, model in ((name, network()) for name in names)
        ]
        self.trees = {learner.name: learner.mixed for learner in self.learners if learner.name != "late"}
        self.mix = Mix(self.learners[0].tree, names)
        gammas = {"linf": Points((Fraction(0),), (0.5,)), "natural": Share(0.5), "l2": REST, "late": REST}
        single = len(names) == 1
        self.plan = MixPlan({n: REST if single else gammas[n] for n in names}, epochs=120, steps_per_epoch=391)
        x, y = images()
        self.batch = Batch(x.contiguous(memory_format=torch.channels_last), y, torch.arange(BATCH))

    def train(self) -> None:
        for learner in self.learners:
            learner.step(self.batch, progress=self.plan.progress(0), key=(0, learner.name, 0))

    def accumulate(self) -> None:
        self.mix.accumulate_(self.trees, weights=self.plan.weights(30000), decay=self.plan.decay(30000))

    def step(self) -> None:
        self.train()
        self.accumulate()

    def bare_passes(self) -> None:
        """Ten forward and input-gradient passes on the model as attacks see it, and one training pass."""
        (learner,) = self.learners
        x, y, *_ = self.batch
        with learner.autocast():
            with attack_view(learner.model) as view:
                for _ in range(STEPS):
                    loss_and_gradient(view, x, y, cross_entropy)
            learner.model.train()
            loss = F.cross_entropy(learner.model(x), y)
        loss.backward()
        learner.model.zero_grad()


def medians(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(rounds + 1):
        for name, run in contestants.items():
            started = time.process_time()
            run()
            if round_:  # the first one warms up
                times[name].append(time.process_time() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="write the figures to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    auto = pick_precision("auto", torch.device("cpu"))
    at32 = Ours(["linf"], torch.float32)
    at_auto = at32 if auto == torch.float32 else Ours(["linf"], auto)
    generalist_t = Ours(["linf", "natural", "l2"], auto)
    late, late32 = Ours(["late"], auto), Ours(["late"], torch.float32)
    contestants = {
        "textbook AT step": textbook(),
        "our AT step, float32": at32.step,
        "its bare passes, float32": at32.bare_passes,
        "our Generalist-T step": generalist_t.step,
        "its mixing": generalist_t.accumulate,
        "late natural step": late.train,
        "late natural step, float32": late32.train,
    }
    if at_auto is not at32:
        contestants |= {"our AT step, auto": at_auto.step, "its bare passes, auto": at_auto.bare_passes}
    seconds = medians(contestants, options.rounds)
    best = "auto" if at_auto is not at32 else "float32"
    step, bare = seconds[f"our AT step, {best}"], seconds[f"its bare passes, {best}"]
    ratios = {
        f"AT step: textbook / ours, {best} (≥ 2.5)": seconds["textbook AT step"] / step,
        "AT step: textbook / ours, float32 (≥ 1.4)": seconds["textbook AT step"] / seconds["our AT step, float32"],
        f"AT step / its bare passes, {best} (≤ 1.05)": step / bare,
        "mixing / Generalist-T step (≤ 0.03)": seconds["its mixing"] / seconds["our Generalist-T step"],
        f"late natural step / AT step, {best} (≤ 0.05)": seconds["late natural step"] / step,
        "late natural step / AT step, float32 (≤ 0.05)": seconds["late natural step, float32"]
        / seconds["our AT step, float32"],
    }
    print(
        f"{platform.machine()}, torch {torch.__version__}, one thread; auto is {auto}, fast bf16: {cpu_has_fast_bf16()}"
    )
    for name, value in seconds.items():
        print(f"  {name:<28} {value * 1000:9.1f} ms")
    for name, value in ratios.items():
        print(f"  {name:<46} {value:6.3f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"seconds": seconds, "ratios": ratios, "auto": str(auto), "torch": torch.__version__}, file, indent=2
            )


if __name__ == "__main__":
    main()
