"""What an attacker may do: a norm and a radius in pixel units, with the geometry of the norm's ball."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, get_args

import torch
from pydantic_core import core_schema
from torch import Tensor

from generalist.core.errors import UserError, shown, unknown
from generalist.core.rng import Source, normal_like, uniform_like

Norm = Literal["linf", "l2", "l1"]
TINY = 1e-12


LEAST, MOST = Fraction(1, 10**12), Fraction(10**12)
"""The sizes that an exact number may have, if it is not 0; their squares, and their inverses, are float32 numbers."""
_NUMBER = re.compile(r"[+-]?[\d_]*\.?[\d_]*(/[\d_]+)?(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)


def parse_fraction(value: Any) -> Fraction:
    """Read "8/255", "0.3", 0.3 or 1 as an exact fraction."""
    try:
        text = str(value).strip()
        if len(text) > 100 or not _NUMBER.fullmatch(text):  # Fraction("1e999999999") would take all memory there is
            raise ValueError
        number = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{shown(value)} is not a number or a fraction such as 8/255") from None
    if number and not LEAST <= abs(number) <= MOST:
        raise UserError(f"{shown(value)} is too {'large' if abs(number) > MOST else 'small'} a number")
    return number


def expand_like(values: Tensor, x: Tensor) -> Tensor:
    """Reshape values [B] to [B, 1, ...], so that they broadcast over a batch x [B, ...]."""
    return values.view(-1, *[1] * (x.dim() - 1))


def unblocked(gradient: Tensor, x_adv: Tensor) -> Tensor:
    """The gradient [B, ...], zero where a pixel is already at the edge of the box: a step would be wasted on it."""
    return torch.where(((x_adv <= 0) & (gradient < 0)) | ((x_adv >= 1) & (gradient > 0)), 0, gradient)


@dataclass(frozen=True)
class Threat:
    """What an attacker may do to an image x: any x' in [0, 1] with ‖x' − x‖ ≤ eps.

    Batches are [B, ...]; each image is treated by itself.

    Args:
        norm: `"linf"`, `"l2"` or `"l1"`.
        eps: Radius in pixel units (pixels are in [0, 1]), above 0: a fraction, a number or text such as `"8/255"`. It
            is kept exact.

    Example:
        >>> import torch
        >>> from generalist import Threat
        >>> threat = Threat.parse("linf:8/255")
        >>> threat.norm, threat.eps, threat.radius
        ('linf', Fraction(8, 255), 0.03137254901960784)
        >>> x = torch.full((1, 4), 0.5)
        >>> threat.project(x + 1, x)
        tensor([[0.5314, 0.5314, 0.5314, 0.5314]])
    """

    norm: Norm
    eps: Fraction

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise unknown("norm", self.norm, get_args(Norm))
        object.__setattr__(self, "eps", parse_fraction(self.eps))
        if self.eps <= 0:
            raise UserError(f"eps must be > 0, got {self.eps}")

    @classmethod
    def parse(cls, text: "str | Threat") -> "Threat":
        """Read a threat from text.

        Args:
            text: `"norm:eps"`, such as `"linf:8/255"` or `"l2:0.5"`. A `Threat` is returned as it is.

        Returns:
            The threat.

        Example:
            >>> from generalist import Threat
            >>> str(Threat.parse("L2:0.5"))
            'l2:1/2'
        """
        if isinstance(text, Threat):
            return text
        norm, colon, eps = str(text).partition(":")
        if not colon:
            raise UserError(f"a threat is written norm:eps, such as linf:8/255, got {shown(text)}")
        return cls(cast(Norm, norm.strip().lower()), parse_fraction(eps))

    def __str__(self) -> str:
        return f"{self.norm}:{self.eps}"

    @property
    def radius(self) -> float:
        """eps as a float, in pixel units."""
        return float(self.eps)

    def size(self, delta: Tensor) -> Tensor:
        """The norm of each perturbation.

        Args:
            delta: Perturbations [B, ...].

        Returns:
            [B], in pixel units.
        """
        flat = delta.flatten(1)
        if self.norm == "linf":
            return flat.abs().amax(1)
        if self.norm == "l2":
            return flat.norm(dim=1)
        return flat.abs().sum(1)

    def project(self, x_adv: Tensor, x: Tensor, *, radius: Tensor | None = None) -> Tensor:
        """Project into the ball around x and the box [0, 1].

        Args:
            x_adv: Points [B, ...].
            x: Images [B, ...], the centres of the balls.
            radius: A radius [B] for each image instead of eps.

        Returns:
            [B, ...]. ℓ∞ and ℓ1: the nearest point of ball and box; ℓ2: projected into the ball, then into the box.
        """
        within = self.radius if radius is None else expand_like(radius, x)
        if self.norm == "linf":
            return torch.clamp(x_adv, x - within, x + within).clamp_(0, 1)
        delta = x_adv - x
        if self.norm == "l2":
            size = expand_like(self.size(delta), x)
            longest = size.clamp_min(within) if isinstance(within, float) else size.clamp_min(TINY).maximum(within)
            return (x + delta * (within / longest)).clamp_(0, 1)
        return (x + self._project_l1(delta, x, radius)).clamp_(0, 1)

    def _project_l1(self, delta: Tensor, x: Tensor, radii: Tensor | None) -> Tensor:
        """Nearest point of {‖u‖₁ ≤ eps, 0 ≤ x+u ≤ 1}: u = sign(v)·clip(|v|−λ, 0, room), λ found exactly.

        Σ clip(|v|−λ, 0, room) is piecewise linear and falls in λ; its slope changes at |v| and |v|−room, so one sort
        of those 2d breakpoints and a running sum give the λ at which it equals eps.
        """
        wide = torch.float32 if x.device.type == "mps" else torch.float64  # MPS has no float64
        v, origin = delta.flatten(1).to(wide), x.flatten(1).to(wide)
        radius = torch.full_like(v[:, :1], self.radius) if radii is None else radii.to(wide)[:, None]
        size, room = v.abs(), torch.where(v > 0, 1 - origin, origin).clamp_min(0)
        clipped = torch.minimum(size, room)
        breaks = torch.cat([size, size - clipped], 1)
        change = torch.cat([torch.ones_like(size), -torch.ones_like(size)], 1)
        breaks, order = breaks.sort(1, descending=True)
        slope = change.gather(1, order).cumsum(1)
        mass = torch.zeros_like(breaks)
        mass[:, 1:] = (slope[:, :-1] * (breaks[:, :-1] - breaks[:, 1:])).cumsum(1)
        at = torch.searchsorted(mass.contiguous(), radius).clamp_(1, breaks.shape[1] - 1)
        slack = (radius - mass.gather(1, at - 1)) / slope.gather(1, at - 1).clamp_min(1)
        threshold = breaks.gather(1, at - 1) - slack
        shrunk = torch.minimum((size - threshold).clamp_min(0), room)
        inside = clipped.sum(1, keepdim=True) <= radius
        return (torch.where(inside, clipped, shrunk) * v.sign()).view_as(delta).to(delta.dtype)

    def steepest(self, gradient: Tensor, *, density: float = 0.0) -> Tensor:
        """The direction of unit norm that raises a linear function fastest.

        In ℓ1 that is the single largest coordinate. `density` spreads the step over a share of the coordinates (sparse
        ascent, Tramèr and Boneh 2019), which needs far fewer steps inside a box.

        Args:
            gradient: [B, ...].
            density: Share of the coordinates that an ℓ1 step moves, 0 to 1; at least one moves.

        Returns:
            [B, ...], each of unit norm, or zero where the gradient is.
        """
        if self.norm == "linf":
            return gradient.sign()
        if self.norm == "l2":
            # Scaled by the largest entry first: the squares of tiny gradients underflow in float32.
            scaled = gradient / expand_like(gradient.flatten(1).abs().amax(1), gradient).clamp_min(1e-38)
            return scaled / expand_like(scaled.flatten(1).norm(dim=1), gradient).clamp_min(TINY)
        flat = gradient.flatten(1)
        count = max(1, round(density * flat.shape[1]))
        top = flat.abs().topk(count, dim=1).indices
        chosen = torch.zeros_like(flat).scatter_(1, top, flat.gather(1, top).sign() / count)
        return chosen.view_as(gradient)

    def random_start(self, x: Tensor, source: Source) -> Tensor:
        """A point drawn uniformly from the ball, then projected into the box.

        Args:
            x: Images [B, ...], the centres of the balls.
            source: Source of randomness.

        Returns:
            [B, ...].
        """
        if self.norm == "linf":
            return self.project(x + self.radius * (2 * uniform_like(x, source) - 1), x)
        count = x[0].numel()
        if self.norm == "l2":
            radius = uniform_like(x.flatten(1)[:, :1], source) ** (1.0 / count)
            direction = self.steepest(normal_like(x, source))
            return self.project(x + self.radius * direction * expand_like(radius[:, 0], x), x)
        # d + 1 exponentials divided by their sum are uniform on the simplex. The last one is the slack inside the ball.
        exponential = -torch.log1p(-uniform_like(x, source))
        slack = -torch.log1p(-uniform_like(x.flatten(1)[:, :1], source))[:, 0]
        sign = torch.where(uniform_like(x, source) < 0.5, -1.0, 1.0)
        share = exponential / expand_like(exponential.flatten(1).sum(1) + slack, x)
        return self.project(x + self.radius * sign * share, x)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        def parse(value: Any) -> "Threat":
            try:
                return cls.parse(value)
            except UserError as error:
                raise ValueError(str(error)) from None

        return core_schema.no_info_plain_validator_function(
            parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )
