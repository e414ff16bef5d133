"""How the weights of our own architectures start."""

from torch import nn


def initialise_(network: nn.Module) -> None:
    """He-normal (fan-out) convolutions, BatchNorm at one and zero; linear heads keep torch's own start."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
