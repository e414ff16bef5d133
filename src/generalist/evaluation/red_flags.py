"""Signs that a robustness figure is not what it seems (Carlini et al. 2019; Croce et al. 2022)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import cross_entropy, frozen, misclassified, pgd
from generalist.attacks.view import attack_view, loss_and_gradient, steady_forward
from generalist.core.rng import ImageStreams, image_ids
from generalist.core.threat import Threat
from generalist.fastpass import switched_off

ZERO_SHARE = 0.05
HUGE_EPS_ACCURACY = 5.0
TRAIN_MODE_POINTS = 15.0
BLACK_BOX_SHARE = 0.005
FEWER_STEPS_POINTS = 1.0
NORMALISATION_POINTS = 15.0
BATCH_SHARE = 1e-3  # of the largest logit: more than rounding
STATISTICS = {
    "to [-1, 1]": ((0.5,), (0.5,)),
    "to [0, 255]": ((0.0,), (1 / 255,)),
    "as for MNIST": ((0.1307,), (0.3081,)),
    "as for CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "as for ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and deviation that networks are commonly trained with."""


@dataclass(frozen=True)
class Flag:
    """`name` for machines, `message` for people."""

    name: str
    message: str

    def record(self) -> dict[str, Any]:
        return asdict(self)


def examine_model(
    model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, seed: int = 0, differentiable: bool = True
) -> list[Flag]:
    """What a model shows on a few hundred images, whatever attacks follow; a check that fails is a flag as well."""
    checks: dict[str, Callable[[], Flag | None]] = {
        "probabilities": lambda: probabilities(model, x),
        "log_probabilities": lambda: log_probabilities(model, x),
        "normalisation": lambda: normalisation(model, x, y),
        "train_mode": lambda: train_mode(model, x, y),
    }
    if differentiable:
        checks |= {
            "zero_gradients": lambda: zero_gradients(model, x, y),
            "huge_eps": lambda: huge_eps(model, x, y, threat=threat, seed=seed),
            "fewer_steps": lambda: fewer_steps(model, x, y, threat=threat, seed=seed),
        }
    flags = [checked(name, check) for name, check in checks.items()]
    return [flag for flag in flags if flag is not None]


def checked(name: str, check: Callable[[], Flag | None]) -> Flag | None:
    """Any model at all may come here: what goes wrong in a check must not cost the verdicts."""
    try:
        return check()
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return Flag("check_failed", f"the check {name} could not be made ({type(error).__name__}: {reason})")


def large_eps(threat: Threat, *, pixels: int) -> Flag | None:
    """A radius that no image has room for was most likely meant in steps of 255."""
    if threat.radius <= _diameter(threat.norm, pixels):
        return None
    return Flag(
        "large_eps",
        f"{threat} is more than any two images are apart, with pixels from 0 to 1; "
        f"was {threat.norm}:{_number(threat.eps)}/255 meant?",
    )


def _diameter(norm: str, pixels: int) -> float:
    """The largest distance between two images with values in 0..1."""
    return {"linf": 1.0, "l2": pixels**0.5, "l1": float(pixels)}[norm]


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"


def no_weights(name: str) -> Flag:
    return Flag("no_weights", f"no weights were given: {name} is random, unless it loads weights by itself")


def no_gradient() -> Flag:
    return Flag("no_gradient", "the model has no gradient: only black-box attacks were made, which find less")


def nan_logits(count: int, which: str) -> Flag:
    return Flag("nan", f"the logits of {count} {which} images are NaN, which counts as wrong")


@torch.no_grad()
def not_deterministic(model: nn.Module, x: Tensor) -> Flag | None:
    with frozen(model), unchanged_rng():
        first, second = steady_forward(model, x), steady_forward(model, x)
    if torch.equal(first, second):
        return None
    return Flag("not_deterministic", "the same images give other logits each time: gradients average over noise")


@torch.no_grad()
def batch_dependent(model: nn.Module, x: Tensor) -> Flag | None:
    """Each image among others of another kind: its logits must stay what they are."""
    others = torch.cat([x[:1], 1 - x[1:]])
    with frozen(model), unchanged_rng():
        first, again, other = steady_forward(model, x), steady_forward(model, x), steady_forward(model, others)
    noise = (first - again).abs().amax()
    if (first[0] - other[0]).abs().amax() <= noise + BATCH_SHARE * first[0].abs().amax():
        return None
    return Flag(
        "batch_dependent",
        "an image's logits depend on the other images of its batch, as with BatchNorm that has no running statistics: "
        "its verdict is not its own",
    )


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Flag | None:
    with frozen(model):
        out = steady_forward(model, x)
    if out.min() < 0 or (out.sum(1) - 1).abs().max() > 1e-3:
        return None
    return Flag("probabilities", "the outputs look like probabilities, not logits: losses saturate on them")


@torch.no_grad()
def log_probabilities(model: nn.Module, x: Tensor) -> Flag | None:
    with frozen(model):
        out = steady_forward(model, x)
    if out.max() > 0 or out.logsumexp(1).abs().max() > 1e-3:
        return None
    return Flag(
        "log_probabilities",
        "the outputs look like log-probabilities, not logits: attacks work on them, but confident ones round to 0",
    )


@torch.no_grad()
def normalisation(model: nn.Module, x: Tensor, y: Tensor) -> Flag | None:
    """A model that is much better on normalised images was trained on them, and lacks its normalisation here."""
    if getattr(model, "trained_on", None):
        return None  # a run's own model: whatever it lacks, it was trained on images as they are
    as_given = _accuracy(model, x, y)
    best, accuracy, numbers = "", as_given, ["", ""]
    for name, (mean, std) in STATISTICS.items():
        if len(mean) not in (1, x.shape[1]):
            continue
        shift, scale = (x.new_tensor(values).view(-1, 1, 1) for values in (mean, std))
        found = _accuracy(model, (x - shift) / scale, y)
        if found > accuracy:
            best, accuracy = name, found
            numbers = [",".join(f"{v:.4g}" for v in values) for values in (mean, std)]
    if accuracy < as_given + NORMALISATION_POINTS:
        return None
    return Flag(
        "normalisation",
        f"clean accuracy is {as_given:.1f} %, and {accuracy:.1f} % on images normalised {best}: the model lacks its "
        f"normalisation; give --mean {numbers[0]} --std {numbers[1]}",
    )


def zero_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Flag | None:
    with switched_off(), attack_view(model) as view:
        _, _, gradient = loss_and_gradient(view, x, y, cross_entropy)
    share = (gradient.flatten(1).abs().amax(1) < 1e-20).float().mean().item()
    if share < ZERO_SHARE:
        return None
    return Flag("zero_gradients", f"the loss has no gradient at {share:.0%} of the images: gradient attacks are blind")


def huge_eps(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, seed: int) -> Flag | None:
    """A ball that holds every image: whatever survives it was not attacked, only missed."""
    whole = Threat(threat.norm, Fraction(_diameter(threat.norm, x[0].numel())))
    accuracy = _pgd_accuracy(model, x, y, whole, steps=50, seed=seed)
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
    """BatchNorm by the batch instead of by its running statistics; dropout is meant to differ and stays out of it."""
    evaluated = _accuracy(model, x, y)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    with frozen(model), unchanged_rng():
        try:
            for norm in norms:
                norm.train()
            trained = (steady_forward(model, x).argmax(1) == y).float().mean().item() * 100
        finally:
            for buffer, value in before:
                buffer.copy_(value)
    if abs(evaluated - trained) < TRAIN_MODE_POINTS:
        return None
    return Flag(
        "train_mode",
        f"clean accuracy is {evaluated:.1f} %, with BatchNorm in train mode {trained:.1f} %: its statistics do not fit",
    )


def black_box(natural: Tensor, white_box: Tensor, black_box_broken: Tensor) -> Flag | None:
    """[N] each: right unattacked; survives all gradient attacks; broken by a black-box attack."""
    beaten = int((natural & white_box & black_box_broken).sum())
    if beaten <= max(1, BLACK_BOX_SHARE * len(natural)):
        return None
    return Flag(
        "black_box", f"a black-box attack breaks {beaten} images that no gradient attack breaks: masked gradients"
    )


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (~misclassified(model, x, y)).float().mean().item() * 100


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
