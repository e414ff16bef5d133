"""The way to a hyperplane, beside scipy's."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from generalist.attacks.hyperplane import toward_hyperplane

NORMS = ["linf", "l2", "l1"]


def shortest(t, w, gap, norm):
    """The length of the shortest move in the box with w·move = gap, from scipy; None where there is none."""
    low, high = -t, 1 - t
    if norm == "l2":  # the move is clip(λw, low, high): find λ
        reach = abs(1 / np.where(w == 0, 1, w)).max() + 1

        def missing(level):
            return w @ np.clip(level * w, low, high) - gap

        if missing(-reach) > 0 or missing(reach) < 0:
            return None
        level = brentq(missing, -reach, reach, xtol=1e-14, rtol=1e-13)
        return np.linalg.norm(np.clip(level * w, low, high))
    d = len(t)
    # variables: the move, then one bound on every |move| (linf) or one bound each (l1)
    bounds = 1 if norm == "linf" else d
    cover = np.ones((d, 1)) if norm == "linf" else np.eye(d)
    cost = np.concatenate([np.zeros(d), np.ones(bounds)])
    above = np.block([[np.eye(d), -cover], [-np.eye(d), -cover]])
    equal = np.concatenate([w, np.zeros(bounds)])[None]
    limits = [*zip(low, high, strict=True), *[(0, None)] * bounds]
    answer = linprog(cost, A_ub=above, b_ub=np.zeros(2 * d), A_eq=equal, b_eq=[gap], bounds=limits)
    return answer.fun if answer.success else None


values = st.integers(0, 8).map(lambda eighths: eighths / 8)  # ties, and points on the edge of the box
weights = st.integers(-6, 6).map(lambda k: k / 4) | st.floats(-3, 3).filter(lambda w: abs(w) > 1e-3)


@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data())
def test_the_way_to_a_hyperplane_is_the_shortest_there_is(norm, data):
    d = data.draw(st.integers(1, 7))
    t = np.array(data.draw(st.lists(values, min_size=d, max_size=d)))
    w = np.array(data.draw(st.lists(weights, min_size=d, max_size=d)))
    furthest = {sign: np.where(sign * w > 0, 1 - t, t) @ abs(w) for sign in (-1, 1)}
    gap = data.draw(st.floats(-0.98 * furthest[-1], 0.98 * furthest[1]))
    assume(abs(gap) > 1e-6)
    move = toward_hyperplane(
        *(torch.from_numpy(a)[None] for a in (t, w)), torch.tensor([gap], dtype=torch.float64), norm
    )[0]
    assert (w @ move.numpy()) == pytest.approx(gap, abs=1e-9)
    assert ((torch.from_numpy(t) + move >= -1e-12) & (torch.from_numpy(t) + move <= 1 + 1e-12)).all()
    length = {"linf": move.abs().max(), "l2": move.norm(), "l1": move.abs().sum()}[norm].item()
    assert length == pytest.approx(shortest(t, w, gap, norm), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_a_hyperplane_out_of_reach_is_approached_as_far_as_the_box_goes(norm):
    points, normal = torch.tensor([[0.25, 0.5, 0.75]]), torch.tensor([[2.0, 0.0, -1.0]])
    move = toward_hyperplane(points, normal, torch.tensor([100.0]), norm)
    torch.testing.assert_close(move, torch.tensor([[0.75, 0.0, -0.75]]))


@pytest.mark.parametrize("norm", NORMS)
def test_no_gradient_no_gap_and_any_scale(norm):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(5, 40, generator=generator)
    normal, gap = torch.randn(5, 40, generator=generator), torch.randn(5, generator=generator)
    assert not toward_hyperplane(points, torch.zeros(5, 40), gap, norm).any()
    assert not toward_hyperplane(points, normal, torch.zeros(5), norm).any()
    plain = toward_hyperplane(points, normal, gap, norm)
    for scale in (1e-20, 1e15):
        torch.testing.assert_close(toward_hyperplane(points, scale * normal, scale * gap, norm), plain)
    rows = [toward_hyperplane(points[i : i + 1], normal[i : i + 1], gap[i : i + 1], norm) for i in range(5)]
    assert torch.equal(torch.cat(rows), plain)


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_no_number_spoils_its_own_row_only_and_ends(norm):
    points, normal, gap = torch.full((4, 6), 0.5), torch.ones(4, 6), torch.ones(4)
    plain = toward_hyperplane(points, normal, gap, norm)
    points[0, 0] = normal[1, 0] = gap[2] = torch.nan
    assert torch.equal(toward_hyperplane(points, normal, gap, norm)[3], plain[3])
    gap[2] = torch.inf
    torch.testing.assert_close(toward_hyperplane(points, normal, gap, norm)[2], torch.full((6,), 0.5))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_thousands_of_coordinates_of_which_the_box_stops_most(norm):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2, 5, 3000, generator=generator, dtype=torch.float64)
    normal = torch.randn(5, 3000, generator=generator, dtype=torch.float64)
    room = torch.where(normal > 0, 1 - points, points)
    gap = torch.tensor([[0.1, 0.5, 0.9, 0.99, 0.9999]] * 2, dtype=torch.float64) * (room * normal.abs()).sum(-1)
    move = toward_hyperplane(points, normal, gap, norm)
    torch.testing.assert_close((move * normal).sum(-1), gap, rtol=1e-12, atol=0)
    assert ((move.abs() == room).sum(-1) > 2000)[:, -1].all()
    # all that the box does not stop have gone equally far, in the unit of the norm
    level = torch.where(move.abs() < room, move.abs() / (1 if norm == "linf" else normal.abs()), torch.nan)
    spread = level.nan_to_num(0).amax(-1) / level.nan_to_num(torch.inf).amin(-1)
    torch.testing.assert_close(spread, torch.ones_like(spread))
