"""A small convolutional network, for digits and for tests."""

from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.types import Count
from generalist.models.initialise import initialise_
from generalist.models.registry import MODELS

_SMALLEST = 8  # below this, two poolings leave nothing worth convolving


class SmallCNN(nn.Module):
    """Five 3×3 convolutions with BatchNorm and ReLU, of width, width, 2·, 2·, 4·width, with two poolings between."""

    def __init__(self, *, classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, 2 * width), nn.BatchNorm2d(2 * width)
        self.conv4, self.bn4 = _conv(2 * width, 2 * width), nn.BatchNorm2d(2 * width)
        self.conv5, self.bn5 = _conv(2 * width, 4 * width), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(4 * width, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.bn3(self.conv3(x)))
        x = self.pool(self.relu(self.bn4(self.conv4(x))))
        x = self.relu(self.bn5(self.conv5(x)))
        return self.fc(x.mean((2, 3)))


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


@MODELS.register("small_cnn")
def small_cnn(*, classes: int, channels: int, size: int, width: Count = 32) -> nn.Module:
    """A small CNN for images from 8×8 up."""
    if size < _SMALLEST:
        raise UserError(f"small_cnn given images of size {size}; it needs {_SMALLEST} or more")
    return SmallCNN(classes=classes, channels=channels, width=width)
