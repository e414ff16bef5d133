"""3×3 convolutions of small maps with a quarter of the multiplications: Winograd's F(4×4, 3×3) (Lavin and Gray 2016).

Maps of 4×4 and 8×8 are the last stages of a ResNet on 32×32 images. They are so small that cutting them into tiles is
part of the transforms, which are two matrix products; the gradient comes by itself at the same price. Everything is
float32; as sums are taken in another order, with weights from 1/24 to 5, rounding errors are some seven times those of
a plain sum: below 1e-5 of the largest value.
"""

import math
from functools import cache

import torch
from torch import Tensor, nn

TILE = 4
FEWEST_CHANNELS = {4: 64, 8: 256}  # by the side of a map: with fewer, the transforms take what the products save
Matrix = tuple[tuple[int, ...], ...]

# One dimension: four pixels LEAVE · ((FILTER · g) ⊙ (ENTER · d)) come from six, d.
ENTER: Matrix = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0))
ENTER += ((0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))
FILTER = ((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24))  # of 24
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
        return shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros") and any(
            _pays(conv, side) for side in FEWEST_CHANNELS
        )

    def forward(self, x: Tensor) -> Tensor:
        square = x.dim() == 4 and x.shape[2] == x.shape[3] and len(x) > 0
        if not square or not float32_on_cpu(x) or not _pays(self, x.shape[2]):
            return super().forward(x)
        if self._version != self.weight._version:
            self._transformed, self._version = transformed(self.weight.detach()), self.weight._version
        return convolve(x, self._transformed, self.bias)


def float32_on_cpu(x: Tensor) -> bool:
    """Where shorter ways than the plain pass were measured to be shorter."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def _pays(conv: nn.Conv2d, side: int) -> bool:
    """Whether the short way is one, for maps of this side."""
    return min(conv.in_channels, conv.out_channels) >= FEWEST_CHANNELS.get(side, math.inf)


@torch.inference_mode(False)  # what is made inside inference mode could never carry a gradient
def transformed(weight: Tensor) -> Tensor:
    """[O, I, 3, 3] → [36, I, O]"""
    one = torch.tensor(FILTER, dtype=weight.dtype) / 24
    both = torch.kron(one, one)
    return (both @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(len(both), weight.shape[1], -1)


def convolve(x: Tensor, transformed: Tensor, bias: Tensor | None) -> Tensor:
    """[N, I, S, S] → [N, O, S, S], whose memory is ordered by pixels first, as the next one likes it."""
    images, side, outputs = len(x), x.shape[2], transformed.shape[2]
    enter, leave = _transforms(side, x.dtype)
    pixels = x.permute(2, 3, 0, 1).reshape(side * side, -1)
    products = torch.bmm((enter @ pixels).view(len(transformed), -1, x.shape[1]), transformed)
    found = (leave @ products.view(leave.shape[1], -1)).view(side, side, images, outputs)
    return (found if bias is None else found.add_(bias)).permute(2, 3, 0, 1)


@cache
@torch.inference_mode(False)
def _transforms(side: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pixels [S²] → 36 numbers of each tile [36 · tiles], and back; what lies around the map is zero."""
    tiles = side // TILE
    enter, leave = torch.zeros(tiles, 6, side + 2, dtype=dtype), torch.zeros(side, tiles, 6, dtype=dtype)
    for tile in range(tiles):
        enter[tile, :, TILE * tile : TILE * tile + 6] = torch.tensor(ENTER, dtype=dtype)
        leave[TILE * tile : TILE * (tile + 1), tile] = torch.tensor(LEAVE, dtype=dtype)
    enter = enter[:, :, 1:-1]
    both_ways = torch.einsum("tap,ubq->abtupq", enter, enter).reshape(-1, side * side)
    return both_ways, torch.einsum("pta,qub->pqabtu", leave, leave).reshape(side * side, -1)
