"""Mixtures of finished models: the formula, what is copied, which modules there are, and where points lie."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from generalist import UserError, build_model
from generalist.mixing import MergeWeights, completed, lattice, merge, module_groups


def tree(seed, count=3):
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(4, 3, generator=generator),
        "fc.weight": torch.randn(2, 4, generator=generator),
        "bn.num_batches_tracked": torch.tensor(count),
    }


TREES = {"linf": tree(0, 7), "natural": tree(1, 8), "l2": tree(2, 9)}
BASE = {"linf": 1.0, "natural": 0.0, "l2": 0.0}
GROUPS = {"conv": ("conv.weight",), "fc": ("fc.weight",)}


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (-0.5, 1.5, 0.0), (0.25, 1.0, -0.25)])
def test_a_mixture_is_the_weighted_sum_of_tensors_of_the_same_name(weights):
    found = merge(TREES, MergeWeights(dict(zip(TREES, weights, strict=True))))
    for name in ("conv.weight", "fc.weight"):
        wide = sum(w * t[name].double() for w, t in zip(weights, TREES.values(), strict=True))
        assert torch.equal(found[name], wide.float())
    assert found["bn.num_batches_tracked"] == 7


def test_order_of_the_tensors_does_not_matter():
    turned = {"linf": TREES["linf"], "natural": dict(reversed(TREES["natural"].items()))}
    half = MergeWeights({"linf": 0.5, "natural": 0.5})
    expected = merge({name: TREES[name] for name in turned}, half)
    assert all(torch.equal(merge(turned, half)[name], expected[name]) for name in expected)


def test_an_endpoint_comes_back_bit_for_bit_whatever_the_others_hold():
    broken = {name: torch.full_like(t, torch.inf) if t.is_floating_point() else t for name, t in tree(3).items()}
    found = merge({"linf": TREES["linf"], "broken": broken}, MergeWeights({"linf": 1.0, "broken": 0.0}))
    assert all(torch.equal(found[name], TREES["linf"][name]) for name in found)


def test_a_module_may_have_weights_of_its_own():
    only_fc = MergeWeights(completed({}, list(TREES)), {"fc": completed({"natural": 1.0}, list(TREES))})
    found = merge(TREES, only_fc, groups=GROUPS)
    assert torch.equal(found["conv.weight"], TREES["linf"]["conv.weight"])
    assert torch.equal(found["fc.weight"], TREES["natural"]["fc.weight"])
    assert only_fc.endpoint is None
    assert only_fc.involved == ["linf", "natural"]
    assert only_fc.away_from_base(list(GROUPS)) == 0.5


def test_what_is_written_differently_and_is_the_same_has_one_key():
    half = {"linf": 0.5, "natural": 0.5}
    base = {"linf": 1.0, "natural": 0.0}
    a, b = MergeWeights(half, {"fc": base}), MergeWeights(base, {"conv": half})
    assert a.key(list(GROUPS)) == b.key(list(GROUPS))
    assert a.key(list(GROUPS)) != MergeWeights(half).key(list(GROUPS))


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda: MergeWeights({"linf": 0.5, "l2": 0.6}), "sum to 1, got linf=0.5, l2=0.6"),
        (lambda: MergeWeights({"linf": float("nan"), "l2": 1.0}), "sum to 1"),
        (lambda: completed({"lnf": 1.0}, ["linf", "l2"]), "did you mean 'linf'"),
        (lambda: merge(TREES, MergeWeights(BASE, {"fd": BASE}), groups=GROUPS), "unknown module 'fd'; known: conv, fc"),
        (lambda: merge({"a": tree(0), "b": {}}, MergeWeights({"a": 0.5, "b": 0.5})), "tensor 'conv.weight' is none"),
        (lambda: merge({"a": {}, "b": tree(0)}, MergeWeights({"a": 0.5, "b": 0.5})), "the base's is none"),
        (lambda: lattice(["linf", "l2"], points=1), "as many points"),
        (lambda: lattice(["linf", "l2"], points=3, beyond=Fraction(1, 2)), "beyond ≥ 1"),
    ],
)  # fmt: skip
def test_mistakes_are_named(mistake, said):
    with pytest.raises(UserError, match=said):
        mistake()


def test_the_base_takes_what_is_left():
    assert completed({"natural": 0.25}, ["linf", "natural", "l2"]) == {"linf": 0.75, "natural": 0.25, "l2": 0.0}


def test_modules_are_children_with_their_normalisation():
    small = build_model("small_cnn", classes=10, channels=1, size=8, width=4)
    assert list(module_groups(small)) == ["conv1", "conv2", "conv3", "conv4", "conv5", "fc"]
    assert "network.bn1.running_mean" in module_groups(small)["conv1"]
    resnet = build_model("resnet18", classes=10, width=4)
    assert list(module_groups(resnet)) == ["conv1", "layer1", "layer2", "layer3", "layer4", "fc"]
    for model in (small, resnet):
        every = [name for names in module_groups(model).values() for name in names]
        assert sorted(every) == sorted(model.state_dict())


def test_a_network_inside_a_wrapper_is_looked_into():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1))
            self.norm = nn.LayerNorm(2)
            self.head = nn.Linear(2, 2)

    wrapped = nn.Sequential(nn.Sequential(Own()), nn.ReLU())
    assert module_groups(wrapped) == {
        "token": ("0.0.token", "0.0.norm.weight", "0.0.norm.bias"),
        "head": ("0.0.head.weight", "0.0.head.bias"),
    }
    assert list(module_groups(nn.Linear(2, 2))) == ["weight", "bias"]


def test_a_line_has_its_points_evenly_and_its_endpoints():
    alphas = [weights["natural"] for weights in lattice(["linf", "natural"], points=5)]
    assert alphas == [0.0, 1.0, 0.25, 0.5, 0.75]
    longer = sorted(weights["natural"] for weights in lattice(["linf", "natural"], points=7, beyond=Fraction(3, 2)))
    assert longer == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5]
    odd = sorted(weights["natural"] for weights in lattice(["linf", "natural"], points=6, beyond=Fraction(3, 2)))
    assert odd == pytest.approx([0.0, 0.375, 0.75, 1.0, 1.125, 1.5])


def test_three_learners_and_21_points_make_a_triangle_of_steps_of_a_fifth():
    found = lattice(["linf", "natural", "l2"], points=21)
    assert len(found) == 21
    assert {round(5 * weight, 6) for weights in found for weight in weights.values()} == {0, 1, 2, 3, 4, 5}


@given(st.integers(2, 6), st.integers(2, 60), st.fractions(1, 3, max_denominator=8))
def test_a_lattice_keeps_its_promises(count, points, beyond):
    names = [f"e{index}" for index in range(count)]
    points = max(points, count)
    found = lattice(names, points=points, beyond=beyond)
    assert count <= len(found) <= points
    assert len({tuple(weights.values()) for weights in found}) == len(found)
    assert [MergeWeights(weights).endpoint for weights in found[:count]] == names
    assert all(MergeWeights(weights).endpoint is None for weights in found[count:])
    for weights in found:
        base, *others = weights.values()
        assert min(others) >= 0
        assert sum(others) <= float(beyond) + 1e-9
        assert base == pytest.approx(1 - sum(others))
