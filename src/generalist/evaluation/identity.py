"""Which model a figure belongs to: its tensors, its code, and what it computes."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.attacks.view import steady_forward
from generalist.core.rng import generator
from generalist.data.splits import Shape
from generalist.distributed import ranks
from generalist.models.attributes import attributes

PROBE_IMAGES = 16
_OWN_PACKAGES = ("torch", "generalist")
_STANDARD_LIBRARY = Path(os.__file__).resolve().parent
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|'tensor', \d+, \d+")
"""What differs between two processes."""


def model_hash(model: nn.Module) -> str:
    """Of the architecture as printed and of every tensor, normalisation included: the same on every machine."""
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bits(tensor))
    return digest.hexdigest()


def verdict_key(model: nn.Module, shape: Shape) -> str:
    """What verdicts are kept under: tensors, plain attributes, source, and the bits of the logits of fixed images.

    Another machine may round the logits differently; its verdicts are then kept apart, which costs time and nothing
    else. All ranks have the key of the main rank.
    """
    digest = hashlib.sha256(model_hash(model).encode())
    for part in (*_attributes(model), *_sources(model)):
        digest.update(part)
    digest.update(_bits(_fixed_logits(model, shape)))
    key: str = ranks.all_gather(digest.hexdigest())[0]
    return key


def _bits(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _attributes(model: nn.Module) -> Iterator[bytes]:
    """What modules hold beside their tensors, as far as it can be written down."""
    for name, value in attributes(model):
        yield f"{name}={_ADDRESS.sub('', repr(value))}".encode()


def _sources(model: nn.Module) -> Iterator[bytes]:
    """The files that a stranger's modules are written in, and those of the user's own that they refer to."""
    kinds = {base for module in model.modules() for base in type(module).__mro__}
    found = {kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] not in (*_OWN_PACKAGES, "builtins")}
    waiting = list(found)
    while waiting:
        module = sys.modules.get(waiting.pop())
        for value in list(vars(module).values()) if module is not None and _is_users(module) else ():
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            if other is not None and other.__name__ not in found and _is_users(other):
                found.add(other.__name__)
                waiting.append(other.__name__)
    for name in sorted(found):
        file = getattr(sys.modules.get(name), "__file__", None)
        yield Path(file).read_bytes() if file and Path(file).is_file() else b""


def _is_users(module: ModuleType) -> bool:
    """Whether it is a file of the user's own, not an installed package's or Python's."""
    file = getattr(module, "__file__", None)
    if not file or module.__name__.partition(".")[0] in _OWN_PACKAGES:
        return False
    path = Path(file).resolve()
    return "site-packages" not in path.parts and not path.is_relative_to(_STANDARD_LIBRARY)


@torch.no_grad()
def _fixed_logits(model: nn.Module, shape: Shape) -> Tensor:
    """Logits of images that are always the same, by one thread, so that the number of threads does not show."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    images = torch.rand(PROBE_IMAGES, *shape, generator=generator("probe")).to(device)
    threads = torch.get_num_threads()
    with frozen(model), torch.random.fork_rng(devices=[]), torch.autocast(device.type, enabled=False):
        torch.default_generator.manual_seed(0)  # for a model that draws noise of its own
        torch.set_num_threads(1)
        try:
            return steady_forward(model, images).float()
        finally:
            torch.set_num_threads(threads)
