"""Small trained models for attacks to be measured on, trained once for all workers of a test run.

robust_digits("linf")   small_cnn, adversarially trained at linf 0.15: apgd and friends find real work here
robust_digits("l2")     the same at l2 0.75; "l1": the l2 model, asked about l1
natural_digits()        small_cnn, trained on clean images: falls at once
"""

import fcntl
import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from generalist import Threat, build_model, models

EPOCHS, BATCH, WIDTH = 7, 64, 8
TRAINED_AT = {"linf": Threat.parse("linf:0.15"), "l2": Threat.parse("l2:0.75")}


class Oracle(NamedTuple):
    """A model in eval mode and the 1797 digits [N, 1, 8, 8] with their labels, in an order that mixes the classes."""

    model: nn.Module
    x: Tensor
    y: Tensor

    def first(self, count: int) -> "Oracle":
        return Oracle(self.model, self.x[:count], self.y[:count])


@lru_cache
def robust_digits(norm: str) -> Oracle:
    norm = "linf" if norm == "linf" else "l2"
    return _oracle(f"robust-{norm}", TRAINED_AT[norm])


@lru_cache
def natural_digits() -> Oracle:
    return _oracle("natural", None)


def robust_accuracy(model: nn.Module, x_adv: Tensor, y: Tensor) -> float:
    """In percent, on the attacked images as they are."""
    with torch.no_grad():
        return 100.0 * (model(x_adv).argmax(1) == y).float().mean().item()


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    return x[order], torch.from_numpy(data.target).long()[order]


def _oracle(name: str, threat: Threat | None) -> Oracle:
    x, y = digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model("small_cnn", classes=10, channels=1, size=8, width=WIDTH)
    path = _cache() / f"{name}-{_key(model, x, y, threat)}.pt"
    with open(path.with_suffix(".lock"), "w") as lock:  # the first worker trains, the others wait and read
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _train_(model, x, y, threat)
            torch.save(model.state_dict(), path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
    model.load_state_dict(torch.load(path))
    return Oracle(model.eval(), x, y)


def _cache() -> Path:
    folder = Path(tempfile.gettempdir()) / f"generalist-oracles-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder


def _key(model: nn.Module, x: Tensor, y: Tensor, threat: Threat | None) -> str:
    """Of everything that the trained weights depend on: another start, data, code, library or CPU is another file."""
    found = hashlib.sha256()
    for tensor in (*model.state_dict().values(), x, y):
        found.update(f"{tensor.dtype} {list(tensor.shape)}".encode() + tensor.numpy().tobytes())
    for file in (Path(__file__), *sorted(Path(models.__file__).parent.glob("*.py"))):
        found.update(file.read_bytes())
    radius = (threat.norm, threat.radius) if threat else None
    machine = (torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA"), torch.get_num_threads())
    found.update(repr((model, radius, torch.__version__, machine)).encode())
    return found.hexdigest()[:16]


def _train_(model: nn.Module, x: Tensor, y: Tensor, threat: Threat | None) -> None:
    """A loop of its own, so that a mistake in the library's attacks cannot make the models easy for them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    epochs = EPOCHS if threat else EPOCHS // 2
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    draw = torch.Generator().manual_seed(1)
    for step in range(steps):
        if step % (len(x) // BATCH) == 0:
            order = torch.randperm(len(x), generator=draw)
        rows = order[(step % (len(x) // BATCH)) * BATCH :][:BATCH]
        inputs = _perturbed(model, x[rows], y[rows], threat) if threat else x[rows]
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), y[rows]).backward()
        optimizer.step()
        schedule.step()


def _perturbed(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, steps: int = 4) -> Tensor:
    """PGD from the image itself, steps of 0.4 eps."""
    model.eval()
    eps = threat.radius
    delta = torch.zeros_like(x)
    for _ in range(steps):
        delta.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x + delta), y, reduction="sum"), delta)
        with torch.no_grad():
            if threat.norm == "linf":
                delta = (delta + 0.4 * eps * gradient.sign()).clamp(-eps, eps)
            else:
                delta = delta + 0.4 * eps * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1).clamp_min(
                    1e-20
                )
                delta = delta * (eps / delta.flatten(1).norm(dim=1).view(-1, 1, 1, 1).clamp_min(eps))
            delta = (x + delta).clamp(0, 1) - x
    return (x + delta).detach()
