"""3×3 convolutions of 4×4 maps with a quarter of the multiplications: Winograd's F(4×4, 3×3) (Lavin and Gray 2016).

Such maps are the last stage of a ResNet on 32×32 images. One tile is a whole map, so the transforms are two small
matrix products, nothing is cut into tiles, and the gradient comes by itself at the same price. Everything is float32;
as sums are taken in another order, with weights from 1/24 to 5, rounding errors are some seven times those of a plain
sum: below 1e-5 of the largest value.
"""

from functools import cache

import torch
from torch import Tensor, nn

SIDE = 4
FEWEST_CHANNELS = 64  # below this the transforms take what the products save
Matrix = tuple[tuple[int, ...], ...]

# One dimension: out = LEAVE · ((FILTER · g) ⊙ (ENTER · d)) for six pixels d, of which the first and last are padding.
ENTER: Matrix = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0))
ENTER += ((0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))
FILTER = ((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24))  # of 24
INSIDE = tuple(row[1:-1] for row in ENTER)
LEAVE = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


class WinogradConv2d(nn.Conv2d):
    """A convolution with fixed weights that takes the short way where there is one."""

    def __init__(self, conv: nn.Conv2d) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(conv.__dict__)
        self._transformed, self._version = torch.empty(0), -1

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
        channels = min(conv.in_channels, conv.out_channels)
        return shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros") and channels >= FEWEST_CHANNELS

    def forward(self, x: Tensor) -> Tensor:
        exact = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if not exact or x.dim() != 4 or x.shape[2:] != (SIDE, SIDE) or not len(x):
            return super().forward(x)
        if self._version != self.weight._version:
            self._transformed, self._version = transformed(self.weight.detach()), self.weight._version
        return convolve(x, self._transformed, self.bias)


@torch.inference_mode(False)  # what is made inside inference mode could never carry a gradient
def transformed(weight: Tensor) -> Tensor:
    """[O, I, 3, 3] → [36, I, O]"""
    both = _kron(FILTER, weight.dtype) / 24**2
    return (both @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(len(both), weight.shape[1], -1)


def convolve(x: Tensor, transformed: Tensor, bias: Tensor | None) -> Tensor:
    """[N, I, 4, 4] → [N, O, 4, 4], whose memory is ordered by pixels first, as the next one likes it."""
    images, outputs = len(x), transformed.shape[2]
    enter, leave = _kron(INSIDE, x.dtype), _kron(LEAVE, x.dtype)
    pixels = x.permute(2, 3, 0, 1).reshape(SIDE * SIDE, -1)
    products = torch.bmm((enter @ pixels).view(len(transformed), images, -1), transformed)
    found = (leave @ products.view(len(transformed), -1)).view(SIDE, SIDE, images, outputs)
    return (found if bias is None else found.add_(bias)).permute(2, 3, 0, 1)


@cache
@torch.inference_mode(False)
def _kron(rows: Matrix, dtype: torch.dtype) -> Tensor:
    """What does to both dimensions, one after the other, what the matrix does to one."""
    matrix = torch.tensor(rows, dtype=dtype)
    return torch.kron(matrix, matrix)
