"""How a network of another's making wants its images in memory."""

import copy

import torch
from torch import Tensor, nn

SAME = 1e-4  # how far the logits of the two layouts may be apart, as a share of the largest


def prefers_channels_last(network: nn.Module, x: Tensor) -> bool:
    """Whether a probe shows that the network runs channels-last, and gives the logits it gives otherwise.

    `x.view(len(x), -1)` raises on channels-last maps, so a network that cannot be probed keeps its own layout.
    The probe is run on copies: neither the network nor the global generator changes.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            plain, other = copy.deepcopy(network), _channels_last(copy.deepcopy(network))
            y = x.contiguous(memory_format=torch.channels_last)
            same = alike(plain.eval()(x.contiguous()), other.eval()(y))
            if same:  # training takes paths that evaluation does not; dropout differs, so it only has to run
                other.train()(y)
        return same
    except Exception:
        # Any network at all may come here, and what cannot be run fails in any way at all.
        return False


def alike(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding; what is not a number is like nothing."""
    return bool(((one - other).abs().amax() <= SAME * one.abs().amax()).item())


def _channels_last(network: nn.Module) -> nn.Module:
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
