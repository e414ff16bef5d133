"""γ that depends on the module: which tensors have which weights."""

from fractions import Fraction as Fr

import pytest
from torch import nn

from generalist import UserError, build_model
from generalist.mixing import REST, WHOLE, ByName, MixPlan, OverDepth, Points, Share, parts_of
from generalist.models.modules import Patterns, select_tensors, tensor_names

HALF, ONE = Points((Fr(0),), (0.5,)), Points((Fr(0),), (1.0,))
RISING = Points((Fr(0), Fr(1)), (0.0, 1.0))


def cnn():
    return build_model("small_cnn", classes=3, channels=1, size=8, width=4)


def weights(gammas, step=0, trained=None, model=None):
    """γ of every learner by tensor, at one step of ten."""
    parts = parts_of(model or cnn(), gammas, trained or {})
    plan = MixPlan(dict.fromkeys(gammas, REST), epochs=10, steps_per_epoch=1,
                   parts={name: part.gammas for name, part in parts.items()})  # fmt: skip
    by_part = plan.weights_by_part(step)
    assert sorted(t for part in parts.values() for t in part.tensors) == sorted(tensor_names(model or cnn()))
    return {t.removeprefix("network."): by_part[name] for name, part in parts.items() for t in part.tensors}


def test_the_same_weights_everywhere_make_one_part():
    parts = parts_of(cnn(), {"a": RISING, "b": REST}, {})
    assert list(parts) == [WHOLE]
    assert parts[WHOLE].gammas == {"a": RISING, "b": REST}
    assert list(parts[WHOLE].tensors) == tensor_names(cnn())
    named = ByName((("*", HALF),))
    assert parts_of(cnn(), {"a": named, "b": REST}, {})[WHOLE].gammas == {"a": HALF, "b": REST}


def test_a_learner_has_weight_only_where_it_trains():
    model = cnn()
    found = weights({"a": REST, "b": HALF}, trained={"b": select_tensors(model, Patterns(("conv5", "fc")))})
    assert found["conv5.weight"] == found["fc.bias"] == {"a": 0.5, "b": 0.5}
    assert found["bn5.running_mean"] == found["conv1.weight"] == {"a": 1.0}


def test_gamma_by_name_is_zero_elsewhere():
    found = weights({"a": REST, "b": ByName((("conv*", HALF), ("fc", RISING)))}, step=5)
    assert found["conv3.weight"] == {"a": 0.5, "b": 0.5}
    assert found["fc.weight"]["b"] == 0.5
    assert found["bn3.weight"] == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize("turned", [False, True])
def test_of_the_patterns_that_match_the_longest_counts_whatever_their_order(turned):
    filters = [("*", HALF), ("fc", ONE), ("conv*", ONE), ("conv1", HALF)]
    found = weights({"a": ByName(tuple(filters[::-1] if turned else filters)), "b": REST})
    assert [found[name]["a"] for name in ("bn1.weight", "fc.bias", "conv2.weight", "conv1.weight")] == [0.5, 1, 1, 0.5]


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(OverDepth((0.0, 1.0), ONE), [0, 0.2, 0.4, 0.6, 0.8, 1]),
     (OverDepth((0.0, 1.0), RISING), [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
     (OverDepth((0.0, 1.0), Share(0.5)), [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
     (OverDepth((1.0, 0.0, 1.0), ONE), [1, 0.6, 0.2, 0.2, 0.6, 1])],
)  # fmt: skip
def test_gamma_over_depth_is_linear_from_the_first_layer_to_the_last(gamma, expected):
    found = weights({"a": gamma, "b": REST}, step=5)
    layers = [found[f"conv{i}.weight"] for i in range(1, 6)] + [found["fc.weight"]]
    assert [row["a"] for row in layers] == pytest.approx(expected)
    assert [row["b"] for row in layers] == pytest.approx([1 - a for a in expected])
    assert found["bn3.running_var"] == found["conv3.weight"]


def test_gamma_over_depth_of_a_single_layer_is_that_of_the_first():
    found = weights({"a": OverDepth((0.25, 1.0), ONE), "b": REST}, model=nn.Linear(2, 2))
    assert found["weight"] == {"a": 0.25, "b": 0.75}


def test_a_tensor_that_nobody_trains_is_refused_by_name():
    model = cnn()
    trained = {name: select_tensors(model, Patterns((name,))) for name in ("fc", "conv5")}
    with pytest.raises(UserError, match="no learner trains conv1"):
        parts_of(model, {"fc": REST, "conv5": HALF}, trained)


def test_weights_that_do_not_sum_to_one_are_refused_with_the_module():
    model = cnn()
    gammas = {"a": HALF, "b": HALF}
    parts = parts_of(model, gammas, {"b": select_tensors(model, Patterns(("fc",)))})
    with pytest.raises(UserError, match=r"sum to 1, got a=0\.5 \(sum 0\.5\) in conv1, bn1, .* bn5 at 0 of training"):
        MixPlan(gammas, epochs=2, steps_per_epoch=1, parts={name: part.gammas for name, part in parts.items()})


def test_two_that_take_the_rest_are_refused_only_where_both_train():
    model = cnn()
    trained = {name: select_tensors(model, Patterns(patterns))
               for name, patterns in {"a": ("conv*", "bn*"), "b": ("fc",), "c": ("fc",)}.items()}  # fmt: skip
    parts = parts_of(model, {"a": REST, "b": REST}, trained)
    plan = MixPlan({"a": REST, "b": REST}, epochs=2, steps_per_epoch=1, parts={n: p.gammas for n, p in parts.items()})
    assert all(list(row.values()) == [1.0] for row in plan.weights_by_part(0).values())
    parts = parts_of(model, {"a": REST, "b": REST, "c": REST}, trained)
    with pytest.raises(UserError, match="only one learner can take the rest of gamma, got b and c in fc"):
        MixPlan(dict.fromkeys("abc", REST), epochs=2, steps_per_epoch=1, parts={n: p.gammas for n, p in parts.items()})


def test_an_unknown_pattern_is_refused():
    with pytest.raises(UserError, match="did you mean 'conv5'"):
        parts_of(cnn(), {"a": ByName((("cnv5", HALF),)), "b": REST}, {})


def test_parts_have_names_of_their_own():
    """A name that is cut short must not hide another part."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(400)))
    gammas = {"a": ByName((("*.weight", HALF),)), "b": REST}
    assert sum(len(part.tensors) for part in parts_of(model, gammas, {}).values()) == 800
