"""Records of fronts: small, sealed, and refused where they are not what was written."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generalist import UserError
from generalist.core.files import sealed
from generalist.evaluation.front_records import (
    FrontRecord,
    JudgedModel,
    fronts_of,
    packed,
    read_front_record,
    unpacked,
)

THREATS = ("linf:1/10", "l2:1/2")


def model(name="at", natural=80, robust=(50, 40), group="AT", images=100, **more):
    order = torch.arange(images)
    rows = {threat: order * 100 < value * images for threat, value in zip(THREATS, robust, strict=False)}
    return JudgedModel(name, group, order * 100 < natural * images, {"quick": rows}, **more)


def record(*models, seed=0, images=100, **more):
    about = {"data": "digits", "split": "test", "images_sha256": "i", "attacks": {"quick": "a"}, "title": f"s{seed}"}
    return FrontRecord(seed=seed, images=images, models=models or (model(images=images),), **(about | more))


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_verdicts_are_packed_without_loss(bits):
    verdicts = torch.tensor(bits)
    assert unpacked(packed(verdicts), len(bits)).tolist() == bits


@pytest.mark.parametrize("text", ["", "AAAA", "!!!!"])
def test_what_is_not_so_many_verdicts_is_refused(text):
    with pytest.raises(ValueError):
        unpacked(text, 4)


def test_a_record_is_read_back_as_it_was(tmp_path):
    path = tmp_path / "digits-s3.json"
    about = {"chosen_by": "last", "recipe_sha256": "r", "training": "t", "cost_in_at": 1.5, "seconds": 9.0}
    written = record(model(**about), model("half", 90, (30, 20), "half"), seed=3, setting="digits")
    written.write(path)
    found = read_front_record(path)
    assert found.record() == written.record()
    assert found.title == str(path)
    assert found.models[0].natural.equal(written.models[0].natural)
    assert json.loads(path.read_text())["models"][0]["robust"] == {"quick": {"linf:1/10": 50.0, "l2:1/2": 40.0}}


def test_forty_models_of_a_thousand_images_by_two_suites_are_small(tmp_path):
    first = model(images=1000, robust=(50,), chosen_by="dial's front on validation", recipe_sha256="0" * 64)
    both = replace(first, robust={"pgd20": first.robust["quick"], "quick": first.robust["quick"]}, training="0" * 64)
    names = [f"0.{number} linf + 0.5 natural; layer4.1: 0.25 linf + 0.75 natural" for number in range(40)]
    record(*(replace(both, name=name) for name in names), images=1000).write(tmp_path / "r.json")
    assert (tmp_path / "r.json").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: {**r, "seed": 4}, "its digest differs"),
        (lambda r: sealed({**r, "version": 99}), "of another version"),
        (lambda r: sealed({**r, "kind": "else"}), "neither a run folder nor a record"),
        (lambda r: sealed({**r, "images": 50}), "not a whole record"),
        (lambda r: sealed({k: v for k, v in r.items() if k != "data"}), "not a whole record"),
        (lambda r: sealed({**r, "models": [{**r["models"][0], "natural": 81.0}]}), "not a whole record"),
        (lambda r: sealed({**r, "models": [3]}), "not a whole record"),
    ],
)
def test_a_changed_record_is_refused_by_name(tmp_path, change, said):
    path = tmp_path / "r.json"
    record().write(path)
    content = json.loads(path.read_text())
    plain = {key: value for key, value in content.items() if key != "digest"}
    path.write_text(json.dumps(change(content if "digest differs" in said else plain)))
    with pytest.raises(UserError, match=said) as refused:
        read_front_record(path)
    assert str(path) in str(refused.value)


def test_models_are_added_and_replaced():
    before = record(model(), model("half", group="half"))
    after = before.with_models([model(natural=81), model("nt", group="NT")], {"pgd20": "b"})
    assert [(one.name, int(one.natural.sum())) for one in after.models] == [("at", 81), ("half", 80), ("nt", 80)]
    assert after.attacks == {"quick": "a", "pgd20": "b"}
    assert after.suites == ["quick"]  # not all were judged by pgd20


def test_one_front_per_group_and_seed():
    swept = model("at2", 85, (45, 35))
    found, threat = fronts_of([record(model(), swept), record(seed=1)], suite="quick", threat=None)
    assert threat == "linf:1/10"
    assert [(f.name, f.seed, [p.pair for p in f.points]) for f in found] == [
        ("AT", 0, [(80.0, 50.0), (85.0, 45.0)]),
        ("AT", 1, [(80.0, 50.0)]),
    ]


@pytest.mark.parametrize(
    ("given_threat", "chosen", "robust"),
    [("l2", "l2:1/2", 40), ("l2:0.5", "l2:1/2", 40), ("union", "true union", 40), ("linf", "linf:1/10", 50)],
)
def test_threats_by_norm_radius_or_all_together(given_threat, chosen, robust):
    (front,), threat = fronts_of([record()], suite="quick", threat=given_threat)
    assert threat == chosen
    assert front.points[0].pair == (80, robust)


@pytest.mark.parametrize(
    ("records", "suite", "threat", "said"),
    [
        ([record(), record(seed=1, data="mnist")], "quick", None, "different data: digits and mnist"),
        ([record(), record(seed=1, split="validation")], "quick", None, "different splits: test and validation"),
        ([record(), record(seed=1, images=50)], "quick", None, "different numbers of images: 100 and 50"),
        ([record(), record(seed=1, images_sha256="j")], "quick", None, "s0 and s1 .* different images$"),
        ([record(), record(seed=1, attacks={"quick": "b"})], "quick", None, "different attacks$"),
        ([record()], "pgd20", None, "not judged by suite pgd20"),
        ([record()], "quick", "l1", "unknown threat 'l1'"),
        ([record(model(robust=(50,)))], "quick", "union", "two threats or more"),
        ([record(model(), model())], "quick", None, "at of AT is there twice with seed 0"),
        ([record(replace(model(), robust={"quick": {}}))], "quick", None, "none in common"),
        ([], "quick", None, "no models"),
    ],
)
def test_what_was_not_judged_alike_is_refused(records, suite, threat, said):
    with pytest.raises(UserError, match=said):
        fronts_of(records, suite=suite, threat=threat)


def test_validation_images_may_differ_from_seed_to_seed_but_not_within_one():
    first = record(split="validation")
    fronts_of([first, record(split="validation", seed=1, images_sha256="j")], suite="quick", threat=None)
    other = record(model("b"), split="validation", images_sha256="j")
    with pytest.raises(UserError, match="different images"):
        fronts_of([first, other], suite="quick", threat=None)
