import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generalist import Threat, UserError
from generalist.core.rng import ImageStreams

NORMS = ("linf", "l2", "l1")


@st.composite
def cases(draw):
    """A threat, images in the box and arbitrary points: any norm, radius, size and scale."""
    norm = draw(st.sampled_from(NORMS))
    eps = draw(st.fractions(min_value=Fraction(1, 1000), max_value=40))
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        x = x.round()
    scale = draw(st.sampled_from([1e-3, 1.0, 100.0]))
    point = x + scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Threat(norm, eps), x, point


def inside(threat, x_adv, x, tolerance=1e-9):
    in_ball = (threat.size(x_adv - x) <= threat.radius * (1 + tolerance) + tolerance).all()
    return in_ball and x_adv.min() >= 0 and x_adv.max() <= 1


@given(cases())
def test_projection_lands_in_ball_and_box_and_is_idempotent(case):
    threat, x, point = case
    projected = threat.project(point, x)
    assert inside(threat, projected, x)
    torch.testing.assert_close(threat.project(projected, x), projected, atol=1e-9, rtol=0)


@given(cases())
def test_projection_leaves_points_of_the_set_alone(case):
    threat, x, point = case
    inner = x + (threat.project(point, x) - x) * 0.9
    torch.testing.assert_close(threat.project(inner, x), inner, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", ["linf", "l1"])
@given(case=cases(), weight=st.floats(0.01, 1))
def test_linf_and_l1_projections_are_the_nearest_point(norm, case, weight):
    """The set is convex: p is the nearest point to v iff ⟨v − p, q − p⟩ ≤ 0 for every q of the set."""
    other, x, point = case
    threat = Threat(norm, other.eps)
    projected = threat.project(point, x)
    generator = torch.Generator().manual_seed(1)
    for scale in (0.01, 1.0, 10.0):
        q = threat.project(x + scale * torch.randn(x.shape, generator=generator, dtype=x.dtype), x)
        q = projected + weight * (q - projected)
        inner = ((point - projected) * (q - projected)).flatten(1).sum(1)
        assert (inner <= 1e-7 * (1 + (point - projected).flatten(1).norm(dim=1))).all()


@given(cases())
def test_steepest_has_unit_norm_and_no_direction_of_unit_norm_is_steeper(case):
    threat, x, gradient = case
    best = threat.steepest(gradient)
    torch.testing.assert_close(threat.size(best), torch.ones(len(x), dtype=x.dtype), atol=1e-9, rtol=0)
    gain = (best * gradient).flatten(1).sum(1)
    dual = {"linf": gradient.flatten(1).abs().sum(1), "l2": gradient.flatten(1).norm(dim=1)}
    dual["l1"] = gradient.flatten(1).abs().amax(1)
    torch.testing.assert_close(gain, dual[threat.norm], atol=1e-9, rtol=1e-9)


@given(cases(), st.integers(0, 1000))
def test_random_start_is_in_the_set_and_reproducible(case, seed):
    threat, x, _ = case
    starts = [threat.random_start(x, ImageStreams(seed, ids=torch.arange(len(x)))) for _ in range(2)]
    assert inside(threat, starts[0], x)
    assert torch.equal(*starts)
    again = threat.random_start(x, torch.Generator().manual_seed(seed))
    assert inside(threat, again, x)


@pytest.mark.parametrize("norm", NORMS)
def test_random_start_fills_the_ball_evenly(norm):
    """In d dimensions a uniform point is inside radius r·eps with probability r^d; the box is far away here."""
    threat = Threat(norm, Fraction(1, 10))
    x = torch.full((20000, 1, 1, 2), 0.5)
    size = threat.size(threat.random_start(x, ImageStreams(0, ids=torch.arange(len(x)))) - x) / threat.radius
    for r in (0.3, 0.5, 0.8):
        assert (size <= r).float().mean().item() == pytest.approx(r**2, abs=0.015)


def test_l1_projection_on_a_case_done_by_hand():
    threat = Threat("l1", Fraction(1))
    x = torch.tensor([[[[0.5, 0.9, 0.5]]]])
    # (0.8, 0.8, −0.3) may move at most (0.5, 0.1, −0.5): λ = 0.1 gives 0.5 + 0.1 + 0.2 = 0.8 ≤ 1, λ = 0 gives 0.9 ≤ 1
    torch.testing.assert_close(threat.project(x + torch.tensor([0.8, 0.8, -0.3]), x), torch.tensor([[[[1, 1, 0.2]]]]))
    # (0.5, 0.05, −0.9): λ = 0.05/2 would be too little; 0.5−λ + 0.05−λ + min(0.9−λ, 0.5) = 1 at λ = 0.025
    expected = torch.tensor([[[[0.975, 0.925, 0.0]]]])
    torch.testing.assert_close(threat.project(x + torch.tensor([0.5, 0.05, -0.9]), x), expected)


def test_tiny_gradients_still_give_a_unit_direction():
    gradient = torch.full((1, 1, 2, 2), 1e-30)
    torch.testing.assert_close(Threat("l2", Fraction(1)).steepest(gradient).norm(), torch.tensor(1.0))


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_gradient_gives_a_finite_direction(norm):
    assert torch.isfinite(Threat(norm, Fraction(1)).steepest(torch.zeros(2, 1, 2, 2))).all()


def test_parse_keeps_eps_exact():
    assert Threat.parse("linf:8/255") == Threat("linf", Fraction(8, 255))
    assert Threat.parse("L2:0.5").eps == Fraction(1, 2)
    assert str(Threat.parse("linf:8/255")) == "linf:8/255"
    assert Threat.parse(Threat.parse("l1:12")) == Threat("l1", Fraction(12))


@pytest.mark.parametrize(
    ("text", "says"),
    [("linf:0", "eps must be > 0, got 0"), ("l2:-1/2", "got -1/2"), ("linfty:1", "did you mean 'linf'"),
     ("linf", "norm:eps"), ("linf:8/0", "8/0"), ("linf:eight", "eight")],
)  # fmt: skip
def test_a_bad_threat_says_what_would_do(text, says):
    with pytest.raises(UserError, match=says):
        Threat.parse(text)


def test_no_perturbation_of_one_image_depends_on_another():
    x = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    point = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    for norm, keep in itertools.product(NORMS, ([0], [3, 1], [5, 4, 3, 2, 1, 0])):
        threat = Threat(norm, Fraction(1, 2))
        assert torch.equal(threat.project(point, x)[keep], threat.project(point[keep], x[keep]))
        assert torch.equal(threat.steepest(point)[keep], threat.steepest(point[keep]))
        streams = ImageStreams(0, ids=torch.arange(6))
        alone = threat.random_start(x[keep], ImageStreams(0, ids=torch.tensor(keep)))
        assert torch.equal(threat.random_start(x, streams)[keep], alone)
