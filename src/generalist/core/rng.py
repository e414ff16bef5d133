"""Named random streams from one seed. Nothing here, or anywhere else, touches the global generator.

`generator` serves what happens once (initialisation, splits, the order of an epoch). `ImageStreams` serves what
happens to images: every image has its own stateless stream, so a draw does not depend on which other images share
the batch, on their order, on the device or on how many processes split the work.
"""

import hashlib
import math

import torch
from torch import Tensor

Key = int | str

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def derive(*parts: Key) -> int:
    """A 63-bit seed that depends on every part; ("a", 1) and ("a1",) differ."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*parts: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of the stream named by `parts`."""
    return torch.Generator(device).manual_seed(derive(*parts))


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _wrap(value: int) -> int:
    """A Python integer as the signed 64-bit one it wraps to."""
    return (value + 2**63) % 2**64 - 2**63


def _splitmix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), wrapping in int64."""
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


class ImageStreams:
    """One stateless stream per image: draw n of image i is a pure function of (key, i, n)."""

    def __init__(self, *parts: Key, ids: Tensor) -> None:
        self._root = _splitmix(_splitmix(ids.long() * _GOLDEN) + derive(*parts))
        self._draws = 0

    def __len__(self) -> int:
        return len(self._root)

    def __getitem__(self, keep: Tensor | slice) -> "ImageStreams":
        """The streams of a subset of the images, as far on as these are."""
        part = object.__new__(ImageStreams)
        part._root, part._draws = self._root[keep], self._draws
        return part

    def uniform(self, *shape: int) -> Tensor:
        """float32 in [0, 1), [len(self), *shape]; 24 random bits each, as torch.rand has."""
        count = math.prod(shape)
        self._draws += 1
        start = _splitmix(self._root + _wrap(self._draws * _GOLDEN))
        counter = torch.arange(1, count + 1, device=start.device, dtype=torch.int64) * _GOLDEN
        bits = _splitmix(start[:, None] + counter)
        return (_shift(bits, 40).to(torch.float32) * 2.0**-24).view(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """float32 standard normal by Box and Muller."""
        radius, angle = self.uniform(*shape), self.uniform(*shape)
        return (-2.0 * torch.log1p(-radius)).sqrt() * torch.cos(2.0 * math.pi * angle)


Source = torch.Generator | ImageStreams


def image_ids(x: Tensor) -> Tensor:
    """An id for each image [B] made from its pixels alone: the same in any batch, order or process."""
    bits = x.detach().float().contiguous().flatten(1).view(torch.int32).long()
    place = torch.arange(1, bits.shape[1] + 1, device=x.device, dtype=torch.int64) * _GOLDEN
    return _splitmix(bits + _splitmix(place)).sum(1)


def per_image(source: Source | None, x: Tensor, *parts: Key) -> ImageStreams:
    """The streams an attack on the batch x draws from: those given, or those of the images' own pixels.

    A torch.Generator is asked once, for one id an image; after that nothing depends on the order of the draws.
    """
    if isinstance(source, ImageStreams):
        return source
    if source is None:
        return ImageStreams(*parts, ids=image_ids(x))
    ids = torch.randint(2**62, (len(x),), generator=source, device=source.device)
    return ImageStreams(*parts, ids=ids.to(x.device))


def uniform_like(x: Tensor, source: Source) -> Tensor:
    """Uniform in [0, 1), of the shape, type and device of a batch x."""
    if isinstance(source, ImageStreams):
        return source.uniform(*x.shape[1:]).to(x)
    return torch.rand(x.shape, generator=source, device=source.device).to(x)


def normal_like(x: Tensor, source: Source) -> Tensor:
    """Standard normal, of the shape, type and device of a batch x."""
    if isinstance(source, ImageStreams):
        return source.normal(*x.shape[1:]).to(x)
    return torch.randn(x.shape, generator=source, device=source.device).to(x)
