"""Searches for minimal distances with small budgets, and records of curves that were never measured."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from generalist.attacks import apgd_ce, apgd_t, fmn_distance
from generalist.core.threat import Threat
from generalist.evaluation import Curve, CurveResult, distances


@contextmanager
def small_budgets() -> Iterator[None]:
    """The same search by attacks of a few steps, on a ladder of a few rungs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "_NEAREST", {"fmn": partial(fmn_distance, steps=10)})
        few = {"APGD_ce": ("", partial(apgd_ce, steps=4)), "APGD_t": ("", partial(apgd_t, steps=4, targets=2))}
        patch.setattr(distances, "STANDARD", few)
        patch.setattr(distances, "RUNGS_PER_OCTAVE", 2)
        patch.setattr(distances, "LOWEST", 2)
        yield


def curve_result(found: Mapping[str, Sequence[float]], **about: Any) -> CurveResult:
    """As if these distances had been measured."""
    curves = {
        (threat := Threat.parse(text)): Curve(threat, list(rows), ["" if row == torch.inf else "fmn" for row in rows])
        for text, rows in found.items()
    }
    natural = torch.tensor([min(row) > 0 for row in zip(*found.values(), strict=True)])
    names = [f"{index}-0" for index in range(len(natural))]
    return CurveResult(curves, natural, names, seed=0, model="0", about=about)
