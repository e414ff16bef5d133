"""3×3 convolutions of small maps with a quarter of the multiplications: Winograd's F(4×4, 3×3) (Lavin and Gray 2016).

The last stages of a ResNet on 32×32 images have maps of 8×8 and 4×4. These are so small that cutting them into tiles is
part of the transforms, which are matrix products along each axis. Everything is float32. The sums are taken in another
order and with factors from 1/24 to 5, so rounding errors are about seven times those of a plain convolution: below 1e-5
of the largest value.
"""

import math
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

TILE = 4
FEWEST_CHANNELS = {4: 64, 8: 64}  # by the side of a map: with fewer, the transforms cost what the products save
Matrix = tuple[tuple[int, ...], ...]

# In one dimension: four output pixels are LEAVE · ((FILTER · g) ⊙ (ENTER · d)), for six input pixels d and a kernel g.
ENTER: Matrix = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0))
ENTER += ((0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))
FILTER = ((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24))  # in 24ths
LEAVE = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


class WinogradConv2d(nn.Conv2d):
    """A convolution that uses Winograd's algorithm for the maps where that is faster, with cached weight transforms."""

    def __init__(self, conv: nn.Conv2d) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(conv.__dict__)
        self._transformed: dict[bool, Tensor] = {}
        self._made_from: tuple[int, ...] = ()

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
        forth = self._weight(back=False)
        if not x.requires_grad or not torch.is_grad_enabled():
            found = convolve(x, forth, self.bias)
        else:
            found = cast(Tensor, _Convolution.apply(x, self.bias, forth, self._weight(back=True)))
        # A model that is not channels-last may `view` the result as one row per image.
        return found.contiguous() if self.weight.is_contiguous() else found

    def _weight(self, *, back: bool) -> Tensor:
        made_from = id(self.weight), self.weight.data_ptr(), self.weight._version
        if self._made_from != made_from:
            self._transformed, self._made_from = {}, made_from
        if back not in self._transformed:
            # The gradient in the input is a convolution with the transposed, flipped kernel.
            weight = self.weight.detach().transpose(0, 1).flip(2, 3) if back else self.weight.detach()
            self._transformed[back] = transformed(weight)
        return self._transformed[back]

    def forget_(self) -> None:
        """Free the transformed weights: four times the size of the plain ones, eight times with those for gradients."""
        self._transformed = {}


class _Convolution(torch.autograd.Function):
    """The gradient of a convolution is a convolution as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, forth: Tensor, back: Tensor) -> Tensor:
        ctx.back, ctx.forth = back, forth
        return convolve(x, forth, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        with torch.autocast("cpu", enabled=False):  # even if the backward pass runs inside autocast
            return _Convolution.apply(gradients[0], None, ctx.back, ctx.forth), None, None, None


def float32_on_cpu(x: Tensor) -> bool:
    """Whether x is of the kind for which the faster passes were measured to be faster."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def _pays(conv: nn.Conv2d, side: int) -> bool:
    """Whether Winograd's algorithm is faster for maps of this side."""
    return min(conv.in_channels, conv.out_channels) >= FEWEST_CHANNELS.get(side, math.inf)


@torch.inference_mode(False)  # a tensor made in inference mode can never carry a gradient
def transformed(weight: Tensor) -> Tensor:
    """Transform a weight: [O, I, 3, 3] → [36, I, O]."""
    one = torch.tensor(FILTER, dtype=weight.dtype, device=weight.device) / 24
    both = torch.kron(one, one)
    return (both @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(len(both), weight.shape[1], -1)


def convolve(x: Tensor, transformed: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with a transformed weight: [N, I, S, S] → [N, O, S, S].

    In memory the pixels are the outermost axes, which is the fastest layout for the next such convolution.
    """
    images, inputs, side, outputs = *x.shape[:3], transformed.shape[2]
    (enter_down, enter_across), (leave_down, leave_across) = _transforms(side, x.dtype)
    lines = enter_down @ x.permute(2, 3, 0, 1).reshape(enter_down.shape[1], -1)
    tiles = lines if enter_across is None else enter_across @ lines.view(-1, side, images * inputs)
    tiles = tiles.view(side // TILE, len(transformed), -1, inputs)
    products = x.new_empty(*tiles.shape[:3], outputs)
    for row in range(len(tiles)):
        torch.bmm(tiles[row], transformed, out=products[row])
    lines = products if leave_across is None else leave_across @ products.view(-1, 6 * side // TILE, images * outputs)
    found = x.new_empty_strided((images, outputs, side, side), (outputs, 1, side * images * outputs, images * outputs))
    torch.mm(leave_down, lines.view(leave_down.shape[1], -1), out=found.permute(2, 3, 0, 1).view(len(leave_down), -1))
    return found if bias is None else found.add_(bias.view(-1, 1, 1))


@cache
@torch.inference_mode(False)
def _transforms(side: int, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """The matrices that take pixels to the 6 × 6 numbers of each tile, and back; zero padding is included.

    Each is a pair, for the vertical and the horizontal axis; for maps of a single tile one matrix does both. The
    numbers are ordered by row of tiles, then vertically, horizontally, and by tile of the row, so that a row of tiles
    is contiguous in memory.
    """
    tiles = side // TILE
    enter = torch.zeros(tiles, 6, side + 2, dtype=dtype, device="cpu")
    leave = torch.zeros(side, tiles, 6, dtype=dtype, device="cpu")
    for tile in range(tiles):
        enter[tile, :, TILE * tile : TILE * tile + 6] = torch.tensor(ENTER, dtype=dtype)
        leave[TILE * tile : TILE * (tile + 1), tile] = torch.tensor(LEAVE, dtype=dtype)
    enter = enter[:, :, 1:-1]
    into = enter.reshape(-1, side), enter.transpose(0, 1).reshape(-1, side)
    back = leave.reshape(side, -1), leave.transpose(1, 2).reshape(side, -1)
    return tuple((torch.kron(*ways), None) if side == TILE else ways for ways in (into, back))
