"""Wide ResNets (Zagoruyko and Komodakis 2016), named wrn-D-K for a depth D and a widening factor K.

Two ways of counting layers are in use. 6n+4 (16, 22, 28, 34, ...) counts the 1×1 shortcuts and is the paper's. 6n+2
(26, 32, 38, ...) leaves them out and is that of the adversarial training literature after Madry et al. (2018). Either
way there are n blocks in each of the three stages, so that WRN-32-10 and WRN-34-10 are one network (n = 5).
"""

import re
from collections.abc import Callable

from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.registry import Registry
from generalist.core.types import Count, Unit
from generalist.models.initialise import initialise_
from generalist.models.preact_resnet import preact_stage

PATTERN = "wrn-D-K"
FAMILIES: Registry[Callable[..., nn.Module]] = Registry(
    "model family", runtime=("depth", "factor", "classes", "channels", "size")
)


class WideResNet(nn.Module):
    """A 3×3 stem of `width`, three stages of K·width, 2K·width and 4K·width, a last BatchNorm and a linear head."""

    def __init__(
        self, *, blocks: int, factor: int, classes: int, channels: int, width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        grown = width * factor
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.layer1 = preact_stage(width, grown, blocks, stride=1, dropout=dropout)
        self.layer2 = preact_stage(grown, 2 * grown, blocks, stride=2, dropout=dropout)
        self.layer3 = preact_stage(2 * grown, 4 * grown, blocks, stride=2, dropout=dropout)
        self.bn1 = nn.BatchNorm2d(4 * grown)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4 * grown, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(self.relu(self.bn1(x)).mean((2, 3)))


def parse_wrn(name: str) -> tuple[int, int] | None:
    """The depth and factor of a name of the form wrn-D-K; None for any other name."""
    match = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,4})", name, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def blocks_per_stage(depth: int) -> int:
    """n of a depth 6n+4 or 6n+2."""
    if depth < 8 or depth % 6 not in (2, 4):
        raise UserError(f"wrn of depth {depth}; it must be 6n+4 (16, 22, 28, 34, ...) or 6n+2 (14, 20, 26, 32, ...)")
    return (depth - 2) // 6


@FAMILIES.register(PATTERN)
def wide_resnet(
    *, depth: int, factor: int, classes: int, channels: int, size: int, width: Count = 16, dropout: Unit = 0.0
) -> nn.Module:
    """WRN-depth-factor over a base `width`."""
    if factor < 1:
        raise UserError(f"wrn-{depth}-{factor}: the widening factor must be 1 or more")
    return WideResNet(
        blocks=blocks_per_stage(depth),
        factor=factor,
        classes=classes,
        channels=channels,
        width=width,
        dropout=dropout,
    )
