"""ResNets (He et al. 2016) with torchvision's names, so that its checkpoints load; strides sit on the 3×3 (v1.5)."""

from typing import Literal

from torch import Tensor, nn

from generalist.core.types import Count
from generalist.models.initialise import initialise_
from generalist.models.registry import MODELS

Stem = Literal["auto", "cifar", "imagenet"]
_LARGEST_CIFAR = 64


def imagenet_stem(stem: Stem, size: int) -> bool:
    """Whether the network starts with 7×7 stride 2 and pooling, rather than with 3×3 stride 1."""
    return size > _LARGEST_CIFAR if stem == "auto" else stem == "imagenet"


def stem_conv(channels: int, width: int, *, imagenet: bool) -> nn.Conv2d:
    if imagenet:
        return nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Conv2d(channels, width, 3, padding=1, bias=False)


def stem_pool(*, imagenet: bool) -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1) if imagenet else nn.Identity()


def thinning(inputs: int, stride: int) -> int:
    """How much of the stride of a 1×1 convolution is taken by `thin` rather than by the convolution: all or none of it.

    oneDNN's weight gradient of a strided channels-last 1×1 with few input channels (fewer than 8 on AVX2, 16 on
    AVX-512) writes out of bounds: a crash or a wrong gradient. Seen in torch 2.13; uxlfoundation/oneDNN issue 6035.
    """
    return stride if inputs < 16 else 1


def thin(x: Tensor, every: int) -> Tensor:
    """Every so many pixels; with a 1×1 convolution after it, the same as a strided one."""
    return x if every == 1 else x[:, :, ::every, ::every]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, *, stride: int, inner: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.thinning = thinning(inputs, stride)
        self.downsample = _downsample(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.downsample(thin(x, self.thinning)))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1; `inner` widens the 3×3."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, *, stride: int, inner: int = 1) -> None:
        super().__init__()
        middle, outputs = planes * inner, planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.thinning = thinning(inputs, stride)
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(thin(x, self.thinning)))


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module:
    """What carries the input past a block, after `thin`."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    conv = nn.Conv2d(inputs, outputs, 1, stride=stride // thinning(inputs, stride), bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, four stages of width, 2·, 4· and 8·width, global average pooling and a linear head."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        classes: int,
        channels: int,
        width: int,
        imagenet: bool,
        inner: int = 1,
    ) -> None:
        super().__init__()

        def stage(inputs: int, planes: int, depth: int, stride: int) -> nn.Sequential:
            outputs = planes * block.expansion
            rest = [block(outputs, planes, stride=1, inner=inner) for _ in range(depth - 1)]
            return nn.Sequential(block(inputs, planes, stride=stride, inner=inner), *rest)

        grown = width * block.expansion
        self.conv1 = stem_conv(channels, width, imagenet=imagenet)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = stem_pool(imagenet=imagenet)
        self.layer1 = stage(width, width, depths[0], 1)
        self.layer2 = stage(grown, 2 * width, depths[1], 2)
        self.layer3 = stage(2 * grown, 4 * width, depths[2], 2)
        self.layer4 = stage(4 * grown, 8 * width, depths[3], 2)
        self.fc = nn.Linear(8 * grown, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


@MODELS.register("resnet18")
def resnet18(*, classes: int, channels: int, size: int, width: Count = 64, stem: Stem = "auto") -> nn.Module:
    """ResNet-18; the stem follows the image size (up to 64: 3×3)."""
    imagenet = imagenet_stem(stem, size)
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes, channels=channels, width=width, imagenet=imagenet)


@MODELS.register("resnet34")
def resnet34(*, classes: int, channels: int, size: int, width: Count = 64, stem: Stem = "auto") -> nn.Module:
    """ResNet-34."""
    imagenet = imagenet_stem(stem, size)
    return ResNet(BasicBlock, (3, 4, 6, 3), classes=classes, channels=channels, width=width, imagenet=imagenet)


@MODELS.register("resnet50")
def resnet50(*, classes: int, channels: int, size: int, width: Count = 64, stem: Stem = "auto") -> nn.Module:
    """ResNet-50."""
    imagenet = imagenet_stem(stem, size)
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, width=width, imagenet=imagenet)


@MODELS.register("wide_resnet50_2")
def wide_resnet50_2(*, classes: int, channels: int, size: int, width: Count = 64, stem: Stem = "auto") -> nn.Module:
    """ResNet-50 with bottlenecks twice as wide inside."""
    imagenet = imagenet_stem(stem, size)
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, width=width, imagenet=imagenet, inner=2)
