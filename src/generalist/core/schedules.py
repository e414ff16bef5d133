"""Pure functions of training progress, from 0 (start) to 1 (end). Progress is an exact fraction, so that a value at a
breakpoint is that breakpoint's value and a flat stretch is exactly flat."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from generalist.core.errors import UserError
from generalist.core.registry import Registry
from generalist.core.types import Exact, NonNegativeFloat, Unit

Schedule = Callable[[Fraction], float]
SCHEDULES: Registry[Callable[..., float]] = Registry("schedule", called="progress")

MOST_POINTS = 100
InsideTraining = Annotated[float, Field(gt=0, lt=1)]


def interpolate(progress: Fraction, at: Sequence[Fraction], values: Sequence[float]) -> float:
    """Linear between (at, value) points, constant outside them."""
    right = bisect_right(at, progress)
    if right == 0:
        return values[0]
    if right == len(at) or values[right] == values[right - 1]:
        return values[right - 1]
    share = float((progress - at[right - 1]) / (at[right] - at[right - 1]))
    return values[right - 1] + share * (values[right] - values[right - 1])


def check_points(at: Sequence[Fraction], values: Sequence[float]) -> None:
    """Breakpoints must be as many as their values, rising, and inside [0, 1]."""
    if len(at) != len(values) or not at:
        raise UserError(f"a piecewise schedule needs one value for each breakpoint, got {len(at)} and {len(values)}")
    if len(at) > MOST_POINTS:
        raise UserError(f"a piecewise schedule has at most {MOST_POINTS} breakpoints, got {len(at)}")
    if any(b <= a for a, b in pairwise(at)) or at[0] < 0 or at[-1] > 1:
        raise UserError(f"breakpoints must rise within 0..1 (shares of training), got {', '.join(map(str, at))}")


def within(schedule: Schedule, start: Fraction, end: Fraction) -> Schedule:
    """The schedule over a stretch of training: from its own 0 at `start` to its own 1 at `end`."""
    return lambda progress: schedule(min(Fraction(1), max(Fraction(0), (progress - start) / (end - start))))


@SCHEDULES.register("constant")
def constant(progress: Fraction) -> float:
    """1, always."""
    return 1.0


def _breakpoints(options: Mapping[str, Any]) -> None:
    check_points(options["at"], options["values"])


@SCHEDULES.register("piecewise", check=_breakpoints)
def piecewise(progress: Fraction, *, at: tuple[Exact, ...], values: tuple[NonNegativeFloat, ...]) -> float:
    """Linear between breakpoints."""
    return interpolate(progress, at, values)


@SCHEDULES.register("staircase", check=_breakpoints)
def staircase(progress: Fraction, *, at: tuple[Exact, ...], values: tuple[NonNegativeFloat, ...]) -> float:
    """Each value from its breakpoint to the next."""
    return values[max(bisect_right(at, progress) - 1, 0)]


@SCHEDULES.register("cosine")
def cosine(progress: Fraction, *, warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0, end: Unit = 0.0) -> float:
    """Up linearly, then down half a cosine.

    Args:
        warmup: The share of training over which it rises to 1.
        end: The value at the end.
    """
    if progress < warmup:
        return float(progress) / warmup
    share = (float(progress) - warmup) / (1 - warmup)
    return end + (1 - end) * (1 + math.cos(math.pi * share)) / 2


@SCHEDULES.register("cyclic")
def cyclic(progress: Fraction, *, peak: InsideTraining = 0.4) -> float:
    """Up linearly, then down linearly to 0 (Fast-AT's schedule).

    Args:
        peak: The share of training at which it reaches 1.
    """
    return float(progress) / peak if progress < peak else (1 - float(progress)) / (1 - peak)
