"""Pre-activation ResNets (He et al. 2016b), whose block the wide ResNets share."""

from torch import Tensor, nn

from generalist.core.types import Count
from generalist.models.initialise import initialise_
from generalist.models.registry import MODELS
from generalist.models.resnet import Stem, imagenet_stem, stem_conv, stem_pool, thin, thinning


class PreActBlock(nn.Module):
    """Twice BatchNorm, ReLU, 3×3 convolution; a change of shape is carried by a 1×1 on the activated input."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.thinning = thinning(inputs, stride)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride // self.thinning, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(thin(active, self.thinning))
        out = self.relu(self.bn2(self.conv1(active)))
        return self.conv2(self.dropout(out)) + skip


def preact_stage(inputs: int, outputs: int, depth: int, *, stride: int, dropout: float = 0.0) -> nn.Sequential:
    """`depth` blocks, the first of which changes the shape."""
    first = PreActBlock(inputs, outputs, stride=stride, dropout=dropout)
    return nn.Sequential(first, *(PreActBlock(outputs, outputs, stride=1, dropout=dropout) for _ in range(depth - 1)))


class PreActResNet(nn.Module):
    """Stages of width, 2·, 4· and 8·width. A last BatchNorm and ReLU precede the pooling, as in the paper.

    The popular CIFAR port leaves them out: for PreActResNet-18 that is 1024 parameters fewer.
    """

    def __init__(
        self, depths: tuple[int, int, int, int], *, classes: int, channels: int, width: int, imagenet: bool
    ) -> None:
        super().__init__()
        self.conv1 = stem_conv(channels, width, imagenet=imagenet)
        self.maxpool = stem_pool(imagenet=imagenet)
        self.layer1 = preact_stage(width, width, depths[0], stride=1)
        self.layer2 = preact_stage(width, 2 * width, depths[1], stride=2)
        self.layer3 = preact_stage(2 * width, 4 * width, depths[2], stride=2)
        self.layer4 = preact_stage(4 * width, 8 * width, depths[3], stride=2)
        self.bn1 = nn.BatchNorm2d(8 * width)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8 * width, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.relu(self.bn1(x)).mean((2, 3)))


@MODELS.register("preact_resnet18")
def preact_resnet18(*, classes: int, channels: int, size: int, width: Count = 64, stem: Stem = "auto") -> nn.Module:
    """PreActResNet-18, with its last BatchNorm."""
    imagenet = imagenet_stem(stem, size)
    return PreActResNet((2, 2, 2, 2), classes=classes, channels=channels, width=width, imagenet=imagenet)
