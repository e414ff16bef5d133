"""Signs that a robustness figure is not what it seems (Carlini et al. 2019; Croce et al. 2022)."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import cross_entropy, frozen, misclassified, pgd
from generalist.attacks.view import loss_and_gradient, steady_forward
from generalist.core.rng import ImageStreams, image_ids
from generalist.core.threat import Threat

ZERO_SHARE = 0.05
HUGE_EPS_ACCURACY = 5.0
TRAIN_MODE_POINTS = 15.0
BLACK_BOX_SHARE = 0.005
FEWER_STEPS_POINTS = 1.0


@dataclass(frozen=True)
class Flag:
    """`name` for machines, `message` for people."""

    name: str
    message: str

    def record(self) -> dict[str, Any]:
        return asdict(self)


def examine_model(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, seed: int = 0) -> list[Flag]:
    """What a model shows on a few hundred images, whatever attacks follow."""
    checks: list[Callable[[], Flag | None]] = [
        lambda: not_deterministic(model, x),
        lambda: probabilities(model, x),
        lambda: zero_gradients(model, x, y),
        lambda: huge_eps(model, x, y, threat=threat, seed=seed),
        lambda: fewer_steps(model, x, y, threat=threat, seed=seed),
        lambda: train_mode(model, x, y),
    ]
    return [flag for check in checks if (flag := check()) is not None]


@torch.no_grad()
def not_deterministic(model: nn.Module, x: Tensor) -> Flag | None:
    with frozen(model), unchanged_rng():
        first, second = steady_forward(model, x), steady_forward(model, x)
    if torch.equal(first, second):
        return None
    return Flag("not_deterministic", "the same images give other logits each time: gradients average over noise")


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Flag | None:
    with frozen(model):
        out = steady_forward(model, x)
    if out.min() < 0 or (out.sum(1) - 1).abs().max() > 1e-3:
        return None
    return Flag("probabilities", "the outputs look like probabilities, not logits: losses saturate on them")


def zero_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Flag | None:
    with frozen(model):
        _, _, gradient = loss_and_gradient(model, x, y, cross_entropy)
    share = (gradient.flatten(1).abs().amax(1) < 1e-20).float().mean().item()
    if share < ZERO_SHARE:
        return None
    return Flag("zero_gradients", f"the loss has no gradient at {share:.0%} of the images: gradient attacks are blind")


def huge_eps(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, seed: int) -> Flag | None:
    """A ball that holds every image: whatever survives it was not attacked, only missed."""
    whole = {"linf": 1.0, "l2": x[0].numel() ** 0.5, "l1": float(x[0].numel())}[threat.norm]
    accuracy = _pgd_accuracy(model, x, y, Threat(threat.norm, Fraction(whole)), steps=50, seed=seed)
    if accuracy <= HUGE_EPS_ACCURACY:
        return None
    return Flag("huge_eps", f"{accuracy:.1f} % survive a ball that holds every possible image: the attack is misled")


def fewer_steps(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, seed: int) -> Flag | None:
    one = _pgd_accuracy(model, x, y, threat, steps=1, seed=seed, step_size=threat.radius)
    many = _pgd_accuracy(model, x, y, threat, steps=20, seed=seed)
    if many <= one + FEWER_STEPS_POINTS:
        return None
    return Flag("fewer_steps", f"one step ({one:.1f} %) breaks more than twenty ({many:.1f} %): gradients mislead")


@torch.no_grad()
def train_mode(model: nn.Module, x: Tensor, y: Tensor) -> Flag | None:
    """On a copy: a pass in train mode changes running statistics."""
    evaluated = (~misclassified(model, x, y)).float().mean().item() * 100
    other = copy.deepcopy(model).train()
    with unchanged_rng():
        trained = (other(x).argmax(1) == y).float().mean().item() * 100
    if abs(evaluated - trained) < TRAIN_MODE_POINTS:
        return None
    return Flag("train_mode", f"clean accuracy is {evaluated:.1f} % in eval mode and {trained:.1f} % in train mode")


def black_box(natural: Tensor, white_box: Tensor, black_box_broken: Tensor) -> Flag | None:
    """[N] each: right unattacked; survives all gradient attacks; broken by a black-box attack."""
    beaten = int((natural & white_box & black_box_broken).sum())
    if beaten <= max(1, BLACK_BOX_SHARE * len(natural)):
        return None
    return Flag(
        "black_box", f"a black-box attack breaks {beaten} images that no gradient attack breaks: masked gradients"
    )


def _pgd_accuracy(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, *, steps: int, seed: int, step_size: float | None = None
) -> float:
    streams = ImageStreams(seed, "red flags", ids=image_ids(x))
    x_adv = pgd(model, x, y, threat=threat, steps=steps, step_size=step_size, generator=streams)
    return 100 * (~misclassified(model, x_adv, y) & ~misclassified(model, x, y)).float().mean().item()


@contextmanager
def unchanged_rng() -> Iterator[None]:
    """A model that draws from the global generator must not change what comes after."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        yield
