"""Networks in the manner of public repositories, each with one habit that an evaluation has to cope with.

All take images of 3 × 8 × 8 and tell three classes apart by the brightest channel, so that they can be attacked.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


def brightest_(network: nn.Module, layer: nn.Linear, features: int) -> None:
    """Weights with which the network is right: the features are the channels' values, repeated."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.zero_()
                middle = module.kernel_size[0] // 2
                for out in range(module.out_channels):
                    module.weight[out, out % module.in_channels, middle, middle] = 1.0
                if module.bias is not None:
                    module.bias.zero_()
        layer.weight.zero_()
        layer.bias.zero_()
        for index in range(features):
            layer.weight[index // (features // CLASSES) % CLASSES, index] = 12.0 * CLASSES / features


class Viewed(nn.Module):
    """Flattens by view after a pooling that leaves more than one pixel."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.linear = nn.Linear(6 * 4, num_classes)
        brightest_(self, self.linear, 0)
        with torch.no_grad():
            for channel in range(6):
                self.linear.weight[channel % 3, 4 * channel : 4 * channel + 4] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.avg_pool2d(out, 4)
        return self.linear(out.view(out.size(0), -1))


class WideViewed(nn.Module):
    """Enough channels on small maps for the short convolution, whose maps are then viewed."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 66, 3, padding=1), nn.BatchNorm2d(66)
        self.conv2, self.bn2 = nn.Conv2d(66, 66, 3, padding=1), nn.BatchNorm2d(66)
        self.linear = nn.Linear(66 * 64, num_classes)
        brightest_(self, self.linear, 0)
        with torch.no_grad():
            for channel in range(66):
                self.linear.weight[channel % 3, 64 * channel : 64 * channel + 64] = 0.02

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(out.view(out.size(0), -1))


class Buffers(nn.Module):
    """Normalises by buffers of its own."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.register_buffer("mu", torch.tensor([0.5, 0.5, 0.5]).view(1, 3, 1, 1))
        self.register_buffer("sigma", torch.tensor([0.25, 0.25, 0.25]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(3, num_classes)
        brightest_(self, self.fc, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv((x - self.mu) / self.sigma).mean((2, 3)))


class Plain(nn.Module):
    """Nothing unusual; the others are built on it."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc = nn.Linear(6, num_classes)
        brightest_(self, self.fc, 0)
        with torch.no_grad():
            for channel in range(6):
                self.fc.weight[channel % num_classes, channel] = 6.0

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x)).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class PairOut(Plain):
    """(logits, features)"""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = self.features(x)
        return self.fc(features), features


class TwoHeads(Plain):
    """Two outputs of one shape: nobody can tell which are the logits."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        out = self.fc(self.features(x))
        return out, out + 1


class DictOut(Plain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        features = self.features(x)
        return {"features": features, "logits": self.fc(features)}


class Double(Plain):
    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__(num_classes)
        self.double()


class Half(Plain):
    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__(num_classes)
        self.to(torch.bfloat16)


class LogProbabilities(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(super().forward(x), dim=1)


class Probabilities(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(super().forward(x), dim=1)


class BatchStatistics(Plain):
    """Normalises by the batch, in eval mode too."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__(num_classes)
        self.bn = nn.BatchNorm2d(6, track_running_stats=False)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x))).mean((2, 3))


class InPlace(Buffers):
    """Normalises its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x.sub_(self.mu).div_(self.sigma)).mean((2, 3)))


class Patched(nn.Module):
    """Cuts the image into patches by permute and reshape, with dropout."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.embed, self.drop = nn.Linear(3 * 4 * 4, 3), nn.Dropout(0.5)
        self.norm, self.head = nn.Identity(), nn.Linear(3, num_classes)
        with torch.no_grad():
            self.embed.bias.zero_()
            self.embed.weight.copy_(torch.eye(3).repeat_interleave(16, 1) / 16)
            self.head.weight.copy_(12 * torch.eye(num_classes, 3))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        patches = x.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 16)
        return self.head(self.norm(self.drop(self.embed(patches)).mean(1)))


class NotFinite(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.nan


class NanNearby(Plain):
    """Not a number as soon as a pixel is not a whole number of 255ths."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        off = ((x.detach() * 255 - (x.detach() * 255).round()).abs() > 0.01).flatten(1).any(1)
        return torch.where(off[:, None], logits * torch.nan, logits)


class Detached(Plain):
    """Right, without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class Flat(Plain):
    """One number an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


class Raises(Plain):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("images of 64 × 64 are needed\nnot these")


class FixedBatch(Plain):
    """Takes 16 images and no other number of them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(16, 3, 8, 8))


class WholeLevels(Plain):
    """Refuses pixels that are not whole 255ths, as no attacked image is."""

    def forward(self, x: Tensor) -> Tensor:
        if ((x.detach() * 255 - (x.detach() * 255).round()).abs() > 0.01).any():
            raise ValueError("whole levels are needed")
        return super().forward(x)


class Squeezed(Plain):
    """Drops the batch dimension where there is one image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class Noisy(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.05 * torch.randn_like(x))


class Normalised(Plain):
    """Trained on normalised images, and has no normalisation inside: right only if it is given one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - 2.4 * (x.amin((1, 2, 3)) > -0.02).float()[:, None] * torch.tensor([0.0, 5.0, 9.0])


WORKING = (
    Viewed, WideViewed, Buffers, PairOut, DictOut, Double, Half, LogProbabilities, Probabilities, BatchStatistics,
    InPlace, Patched,
)  # fmt: skip


def images(count: int = 24, *, size: int = 8) -> tuple[Tensor, Tensor]:
    """uint8 images [N, 3, size, size] of which the labelled channel is the brightest, by more or by less."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(count) % CLASSES
    x = torch.randint(60, 140, (count, 3, size, size), generator=random)
    x[torch.arange(count), y] += torch.linspace(3, 60, count).long()[:, None, None]
    return x.to(torch.uint8), y
