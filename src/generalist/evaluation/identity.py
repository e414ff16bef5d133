"""Which model a figure belongs to: its tensors, its code, and what it computes."""

import hashlib
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.attacks.view import steady_forward
from generalist.core.rng import generator
from generalist.core.user_code import OWN_PACKAGES, sources
from generalist.data.splits import Shape
from generalist.distributed import ranks
from generalist.models.attributes import attributes

PROBE_IMAGES = 16
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
    found = {kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] not in (*OWN_PACKAGES, "builtins")}
    return sources(found)


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
