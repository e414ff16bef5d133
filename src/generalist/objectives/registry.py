"""Objectives by name. The keyword-only arguments other than the two below are the recipe's fields."""

from collections.abc import Callable

from generalist.core.registry import Registry
from generalist.core.types import LossTerms

OBJECTIVES: Registry[Callable[..., LossTerms]] = Registry("objective", runtime=("generator", "epoch"))
