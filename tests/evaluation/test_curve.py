"""Accuracy against ε: known distances, never above attacks at one radius, whatever way the work is split."""

import itertools
import json
import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from flawed import Quantised
from torch import nn

from curve_cases import curve_result, small_budgets
from generalist import Threat, UserError, load_suite
from generalist.core.errors import RunError
from generalist.core.files import sealed
from generalist.data import ArraySplit
from generalist.evaluation import Suite, curve, distances, evaluate_curve, evaluate_suite, read_curve
from generalist.evaluation.curve import SHOWN
from generalist.evaluation.distances import ladder
from oracles import natural_digits, robust_digits

RADII = {"linf": "linf:3/20", "l2": "l2:3/4", "l1": "l1:2"}
LINF = Threat.parse("linf:1/10")


@pytest.fixture
def cheap():
    with small_budgets():
        yield


def linear_case():
    """Two classes with logits (0, w·x + b), images far from the edges of the box, the first of them wrong."""
    draw = torch.Generator().manual_seed(1)
    w = torch.randn(16, generator=draw)
    x = 0.5 + 0.02 * torch.rand(12, 1, 4, 4, generator=draw)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    lead = x.flatten(1) @ w
    lead -= (bias := lead.median().item() + 1e-3)
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([torch.zeros(16), w]))
        model[1].bias.copy_(torch.tensor([0.0, -bias]))
    y = (lead > 0).long()
    y[0] = 1 - y[0]
    return model, ArraySplit(x, y), w, lead.abs()


def digits_case(count, norm="linf"):
    model, x, y = robust_digits(norm).first(count)
    return model, ArraySplit(x, y)


def same(a, b):
    return [(one.distances, one.found_by) for one in a.curves.values()] == [
        (one.distances, one.found_by) for one in b.curves.values()
    ]


@pytest.mark.filterwarnings("ignore:targeted DLR")
@pytest.mark.parametrize(("norm", "eps"), [("linf", "1/500"), ("l2", "1/100"), ("l1", "1/50")])
def test_the_curve_of_a_linear_model_is_the_closed_form(norm, eps):
    """|w·x + b| / ‖w‖_dual is the distance; the accuracy at ε is the share above it, and the AUC its integral."""
    model, split, w, lead = linear_case()
    threat = Threat(norm, Fraction(eps))
    exact = lead / {"linf": w.abs().sum(), "l2": w.norm(), "l1": w.abs().max()}[norm]
    exact[0] = 0
    result = evaluate_curve(model, split, threats=[threat])
    found = result.curves[threat]
    torch.testing.assert_close(torch.tensor(found.distances), exact, rtol=2e-3, atol=1e-6)
    assert all(a >= b * (1 - 1e-3) for a, b in zip(found.distances, exact.tolist(), strict=True))  # none too near
    reach, edges = 4 * threat.radius, exact.sort().values.tolist()
    assert sum(edge < reach for edge in edges) > 4
    between = [(low + high) / 2 for low, high in itertools.pairwise(edges) if high - low > 1e-2 * high]
    assert len(between) > 5
    for eps in between:
        assert found.accuracy(eps) == round(100 * (exact > eps).float().mean().item(), 2)
    assert result.natural.tolist() == [False] + 11 * [True]
    row = result.record()["threats"][str(threat)]
    assert row["auc"] == pytest.approx(exact.clamp_max(reach).mean().item(), rel=2e-3)
    where, height = found.steps()
    assert where[0] == 0
    assert where[-1] == row["eps_max"] == reach
    integral = sum((b - a) * h / 100 for (a, b), h in zip(itertools.pairwise(where), height, strict=False))
    assert row["auc"] == pytest.approx(integral, rel=1e-3)


@pytest.mark.parametrize("norm", RADII)
def test_never_above_attacks_at_one_radius(norm, monkeypatch):
    """Image by image: not above `quick`, nor above AutoAttack, whose parts all have the same small budgets here."""
    budgets = {"APGD_ce": {"steps": 20}, "APGD_t": {"steps": 10, "targets": 3}, "FAB_t": {"steps": 10, "targets": 2}}
    budgets |= {"Square": {"queries": 50}}
    small = {label: (name, partial(attack, **budgets[label])) for label, (name, attack) in distances.STANDARD.items()}
    monkeypatch.setattr(distances, "STANDARD", small)
    monkeypatch.setattr(distances, "RUNGS_PER_OCTAVE", 2)
    standard = load_suite("autoattack").stages
    stages = tuple(type(s)(s.label, s.attack, {**s.options, **budgets[s.label]}) for s in standard)
    suite = Suite("small", stages, {"quick": ("APGD_ce", "APGD_t"), "AA": tuple(budgets)})
    model, split = digits_case(10, norm)
    threat = Threat.parse(RADII[norm])
    found = evaluate_curve(model, split, threats=[threat]).curves[threat]
    for part in (Fraction(1, 2), 1, Fraction(3, 2)):
        ball = Threat(norm, part * threat.eps)
        attacked = evaluate_suite(model, split, suite, threats=[ball])
        ours = torch.tensor([distance > ball.radius for distance in found.distances])
        for column in suite.columns:
            assert not (ours & ~attacked.robust(ball, column)).any(), f"{ball}: above {column}"
    assert {distance > threat.radius for distance in found.distances} == {True, False}


def test_an_attack_that_fails_in_a_larger_ball_is_asked_at_the_threats_radius(monkeypatch):
    """Else the curve would be above `quick`, which succeeds at ε."""

    def far(model, x, y, *, threat, **options):
        points = (x + 3.5 * threat.radius).clamp_max(1)
        return points, threat.size(points - x)

    def fickle(model, x, y, *, threat, **options):
        return x + threat.radius if threat.eps == LINF.eps else x

    class Bright(nn.Module):
        def forward(self, x):
            gap = x.flatten(1).mean(1) - 0.35
            return torch.stack([-gap, gap], 1)

    monkeypatch.setattr(distances, "_NEAREST", {"fmn": far})
    monkeypatch.setattr(distances, "STANDARD", dict.fromkeys(("APGD_ce", "APGD_t"), ("", fickle)))
    images = torch.full((2, 1, 2, 2), 0.3)
    (found,) = evaluate_curve(Bright(), ArraySplit(images, torch.tensor([0, 1])), threats=[LINF]).curves.values()
    assert found.found_by == ["apgd", "natural"]
    assert 0.05 <= found.distances[0] < 0.052  # pulled back from 0.1 to the boundary
    assert found.distances[1] == 0


def test_points_outside_ball_or_box_are_not_believed(monkeypatch):
    model, x, y = natural_digits().first(4)
    split = ArraySplit(x, y)
    for bad in (lambda x, radius: x + 2, lambda x, radius: x * torch.nan):
        monkeypatch.setattr(distances, "_NEAREST", {"fmn": lambda model, x, y, bad=bad, **_: (bad(x, 0), None)})
        with pytest.raises(RunError, match="fmn left the ball or the box"):
            evaluate_curve(model, split, threats=[LINF])
    monkeypatch.setattr(distances, "_NEAREST", {})

    def beyond(model, x, y, *, threat, **options):
        return (x + 1.01 * threat.radius * torch.where(x < 0.5, 1, -1)).clamp(0, 1)

    monkeypatch.setattr(distances, "STANDARD", dict.fromkeys(("APGD_ce", "APGD_t"), ("", beyond)))
    with pytest.raises(RunError, match="apgd left the ball"):
        evaluate_curve(model, split, threats=[LINF])


def test_nothing_depends_on_batches_or_order_and_the_model_is_left_as_it_was(cheap):
    model, split = digits_case(20)
    model.train().zero_grad()
    next(model.parameters()).requires_grad_(False)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.random.get_rng_state()
    threats = [Threat.parse(RADII["linf"]), Threat.parse(RADII["l2"])]
    try:
        whole = evaluate_curve(model, split, threats=threats)
        assert all(module.training for module in model.modules())
        assert [parameter.requires_grad for parameter in model.parameters()].count(False) == 1
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
        assert torch.equal(random, torch.random.get_rng_state())
    finally:
        next(model.parameters()).requires_grad_(True)
        model.eval()
    parts = evaluate_curve(model, split, threats=threats, batch_size=7)
    back = evaluate_curve(model, split.take(torch.arange(20).flip(0)), threats=threats, batch_size=500)
    for threat in threats:
        for other in (parts.curves[threat].distances, back.curves[threat].distances[::-1]):
            np.testing.assert_allclose(other, whole.curves[threat].distances, rtol=1e-3, atol=1e-5)
    assert evaluate_curve(model, split, threats=threats, limit=5).natural.tolist() == whole.natural.tolist()[:5]


def test_interrupted_and_resumed_is_as_uninterrupted(cheap, tmp_path, monkeypatch):
    model, split = digits_case(12)
    whole = evaluate_curve(model, split, threats=[LINF], batch_size=5, cache=tmp_path / "whole")
    asked, search = [], curve.find_distances

    def counted(model, x, y, **options):
        if len(asked) == 1:
            asked.append("stopped")
            raise KeyboardInterrupt
        asked.append(len(x))
        return search(model, x, y, **options)

    monkeypatch.setattr(curve, "find_distances", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_curve(model, split, threats=[LINF], batch_size=5, cache=tmp_path / "cut")
    resumed = evaluate_curve(model, split, threats=[LINF], batch_size=5, cache=tmp_path / "cut")
    assert asked == [5, "stopped", 5, 2]
    assert same(resumed, whole)
    again = evaluate_curve(model, split, threats=[LINF], batch_size=250, cache=tmp_path / "cut")
    assert len(asked) == 4
    assert same(again, whole)
    evaluate_curve(model, split, threats=[LINF], cache=tmp_path / "cut", seed=1)
    with torch.no_grad():
        other = natural_digits().model
    evaluate_curve(other, split, threats=[LINF], cache=tmp_path / "cut")
    assert asked[4:] == [12, 12]  # another seed, another model


def test_damaged_distances_are_computed_again(cheap, tmp_path):
    model, split = digits_case(6)
    whole = evaluate_curve(model, split, threats=[LINF], batch_size=3, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    first, second = file.read_text().splitlines()
    number = str(json.loads(first)["found"].popitem()[1][0])
    file.write_text(first.replace(number, "0.9") + "\n" + second + "\n")
    with pytest.warns(UserWarning, match="1 damaged line"):
        assert same(evaluate_curve(model, split, threats=[LINF], cache=tmp_path), whole)
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="results are not kept"):
        assert same(evaluate_curve(model, split, threats=[LINF], batch_size=3, cache=tmp_path / "file" / "x"), whole)


def test_what_other_evaluations_broke_counts(cheap, tmp_path):
    """Also where the distances were kept before; only for the same model, norm and image."""
    model, split = digits_case(6)
    plain = evaluate_curve(model, split, threats=[LINF], cache=tmp_path).curves[LINF]
    asked = []
    far = max(range(6), key=lambda i: plain.distances[i])
    name = evaluate_curve(model, split, threats=[LINF], cache=tmp_path).examples[far]
    near, nearer = Fraction(1, 50), Fraction(1, 100)

    def broken(model_sha256):
        asked.append(model_sha256)
        rows = [(nearer, frozenset({name})), (near, frozenset({name, "of another image"}))]
        return {"linf": rows, "l2": [(Fraction(1, 1000), frozenset({name}))]}

    for cache in (tmp_path, None):
        result = evaluate_curve(model, split, threats=[LINF], cache=cache, broken=broken)
        found = result.curves[LINF]
        assert found.distances[far] <= 1 / 100
        assert asked == [result.model]
        assert found.found_by[far] in ("record", "apgd")
        assert [d for i, d in enumerate(found.distances) if i != far] == [
            d for i, d in enumerate(plain.distances) if i != far
        ]
        asked.clear()


def test_threats_of_one_norm_share_their_distances(cheap):
    model, split = digits_case(6)
    small, large = Threat.parse("linf:1/20"), Threat.parse("linf:1/5")
    alone = [evaluate_curve(model, split, threats=[threat]).curves[threat] for threat in (small, large)]
    both = evaluate_curve(model, split, threats=[small, large]).curves
    best = [min(pair) for pair in zip(*(one.distances for one in alone), strict=True)]
    assert both[small].distances == both[large].distances == best


def test_what_makes_distances_doubtful_is_a_red_flag(cheap):
    model, split = digits_case(17)
    masked = evaluate_curve(Quantised(model), split, threats=[LINF])
    assert masked.flags
    assert masked.record()["red_flags"]
    assert "red flag: " in str(masked)
    with pytest.warns(UserWarning, match="was linf:8/255 meant"):
        large = evaluate_curve(model, split, threats=[Threat.parse("linf:8")])
    assert "large_eps" in {flag.name for flag in large.flags}

    class Undefined(nn.Module):
        """NaN for the last image."""

        def forward(self, x):
            last = (x == split.images[-1]).flatten(1).all(1, keepdim=True)
            return torch.where(last, torch.nan, model(x))

    assert "nan" in {flag.name for flag in evaluate_curve(Undefined(), split, threats=[LINF]).flags}


def test_a_model_that_is_always_wrong_has_a_curve_of_zeros(cheap):
    model, x, y = natural_digits().first(4)
    wrong = (model(x).argmax(1) + 1) % 10
    told = []
    result = evaluate_curve(model, ArraySplit(x, wrong), threats=[LINF], progress=lambda *row: told.append(row))
    found = result.curves[LINF]
    assert found.distances == [0] * 4
    assert (found.auc, found.median, found.accuracy(0)) == (0, 0, 0)
    assert told[-1] == (4, 4, 1)
    with pytest.raises(UserError, match="at least one threat"):
        evaluate_curve(model, ArraySplit(x, y), threats=[])


def test_progress_rises_to_the_end(cheap):
    model, split = digits_case(6)
    told = []
    threats = [LINF, Threat.parse("l2:1/2")]
    evaluate_curve(model, split, threats=threats, batch_size=4, progress=lambda *row: told.append(row))
    shares = [share for _, _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(set(shares)) > 20


def test_the_ladder_has_the_radii_of_the_table():
    eps = Fraction(8, 255)
    rungs = ladder(eps)
    assert rungs == sorted(set(rungs))
    assert {part * eps for part in (*SHOWN, 4, Fraction(1, 32))} <= set(rungs)
    assert (rungs[0], rungs[-1]) == (eps / 32, 4 * eps)


def test_figures_of_a_curve():
    result = curve_result({"linf:1/10": [0.0, 0.05, 0.1, 0.3, math.inf], "l2:1": [0.0, 1.0, 2.0, 3.0, 5.0]})
    one, two = result.curves.values()
    assert [one.accuracy(eps) for eps in (0, 0.05, 0.1, 0.2, 9)] == [80, 60, 40, 40, 20]  # a distance of ε is broken
    assert one.auc == pytest.approx((0.05 + 0.1 + 0.3 + 0.4) / 5)
    assert two.auc == pytest.approx(10 / 5)
    assert (one.median, two.median) == (0.1, 2)
    assert one.steps() == ([0, 0.05, 0.1, 0.3, 0.4], [80, 60, 40, 20, 20])
    row = result.record()["threats"]["linf:1/10"]
    assert row["distances"] == [0, 0.05, 0.1, 0.3, None]
    assert row["accuracy"] == {"1/4": 80.0, "1/2": 60.0, "1": 40.0, "3/2": 40.0, "2": 40.0}
    assert str(result).splitlines()[2].split() == [
        "linf:1/10", "80.00", "80.00", "60.00", "40.00", "40.00", "40.00", "0.1", "0.17",
    ]  # fmt: skip
    unbroken = curve_result({"linf:1/10": [math.inf] * 3})
    assert "none found" in str(unbroken)
    assert unbroken.record()["threats"]["linf:1/10"]["median"] is None


def damaged(record, *path, to):
    changed = json.loads(json.dumps(record))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return changed


def test_records_that_were_edited_are_refused(tmp_path):
    file = tmp_path / "record.json"
    record = curve_result({"linf:1/10": [0.0, 0.05, 0.1, 0.3, math.inf]}).record()
    file.write_text(json.dumps(sealed(record)))
    assert read_curve(file) == sealed(record)
    threat = ("threats", "linf:1/10")
    file.write_text(json.dumps(damaged(sealed(record), *threat, "distances", 1, to=0.2)))
    with pytest.raises(UserError, match="was changed since it was written"):
        read_curve(file)
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match="was changed since it was written"):
        read_curve(file)
    edits = [
        (*threat, "distances", 1, 0.2), (*threat, "auc", 1.0), (*threat, "median", 0.2), (*threat, "eps_max", 1.0),
        (*threat, "accuracy", "1", 99.0), (*threat, "eps", "1/20"), (*threat, "norm", "l2"), ("natural", 100.0),
        (*threat, "attacks", "fmn", 5), ("examples", []), ("images", 6),
    ]  # fmt: skip
    for *path, value in edits:
        file.write_text(json.dumps(sealed(damaged(record, *path, to=value))))
        with pytest.raises(UserError, match="not those of its distances"):
            read_curve(file)
    for path, value in (
        (("threats",), []),
        ((*threat, "distances"), "x"),
        ((*threat, "distances"), []),
    ):
        file.write_text(json.dumps(sealed(damaged(record, *path, to=value))))
        with pytest.raises(UserError, match="is not the record of a curve"):
            read_curve(file)
    file.write_text("{")
    with pytest.raises(UserError, match="remove it and run generalist eval again"):
        read_curve(file)
