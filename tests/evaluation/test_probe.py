"""Anybody's model: attacked as it is where that is possible, told in one line where it is not."""

import copy

import pytest
import torch
from torch import nn

import generalist
import strangers
from generalist import Threat, UserError
from generalist.data import ArraySplit
from generalist.evaluation import Suite, evaluate_suite, load_suite
from generalist.evaluation.suite import Stage
from generalist.fastpass.folding import folded

LINF = Threat.parse("linf:8/255")


def suite(*attacks):
    budgets = {
        "pgd": {"steps": 3},
        "apgd-ce": {"steps": 4},
        "fab-t": {"steps": 3, "targets": 1},
        "square": {"queries": 20},
    }
    whole = {stage.attack: stage for stage in load_suite("paper").stages}
    stages = [Stage(name, name, {**whole[name].options, **budgets[name]}) for name in attacks]
    return Suite("tiny", tuple(stages), {"tiny": attacks})


ALL = suite("pgd", "apgd-ce", "fab-t", "square")


def attacked(model, chosen=ALL, **options):
    x, y = strangers.images()
    return evaluate_suite(model, ArraySplit(x, y), chosen, threats=[LINF], **options)


@pytest.fixture(scope="module")
def expected():
    result = attacked(strangers.Plain())
    assert 0 < result.robust(LINF, "tiny").sum() < result.natural.sum()
    return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", strangers.WORKING, ids=lambda network: network.__name__)
@pytest.mark.parametrize("built", [False, True], ids=["raw", "built"])
def test_every_style_of_model_is_attacked(network, built, expected):
    model = generalist.build_model(f"strangers:{network.__name__}", classes=3, size=8) if built else network()
    state = copy.deepcopy(model.state_dict())
    result = attacked(model)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    if network is not strangers.BatchStatistics:
        assert torch.equal(result.natural, expected.natural)
        assert torch.equal(result.robust(LINF, "tiny"), expected.robust(LINF, "tiny"))


@pytest.mark.parametrize(
    ("network", "note"),
    [
        (strangers.PairOut, "output 0 is taken for the logits"),
        (strangers.DictOut, "'logits' is taken for the logits"),
        (strangers.Double, "run in float64"),
        (strangers.Half, "a copy in float32"),
        (strangers.InPlace, "changes its images in place"),
    ],
)
def test_what_was_done_to_a_model_is_said_and_recorded(network, note):
    with pytest.warns(UserWarning, match=note):
        record = attacked(network(), suite("pgd")).record()
    assert [entry for entry in record["notes"] if note in entry]


@pytest.mark.parametrize(
    ("network", "flag"),
    [
        (strangers.BatchStatistics, "batch_dependent"),
        (strangers.Noisy, "not_deterministic"),
        (strangers.Probabilities, "probabilities"),
        (strangers.LogProbabilities, "log_probabilities"),
        (strangers.Normalised, "normalisation"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_with_a_model_is_flagged(network, flag):
    assert flag in {found.name for found in attacked(network(), suite("pgd")).flags}


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        (strangers.TwoHeads, ("[16, 3], [16, 3]", "not clear")),
        (strangers.NotFinite, ("NaN", "16 of 16 clean images")),
        (strangers.Detached, ("no gradient", "square")),
        (strangers.Flat, ("[16]", "[B, K]")),
        (strangers.Raises, ("[16, 3, 8, 8]", "ValueError: images of 64 × 64 are needed")),
        (strangers.FixedBatch, ("[17, 3, 8, 8]", "shape '[16, 3, 8, 8]' is invalid")),
        (strangers.WholeLevels, ("ValueError: whole levels are needed",)),
        (lambda: strangers.Plain(2), ("2 classes", "label 2")),
    ],
)
def test_what_cannot_be_attacked_is_one_line(network, parts):
    with pytest.raises(UserError) as caught:
        attacked(network())
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_model_without_a_gradient_is_attacked_by_queries_alone():
    result = attacked(strangers.Detached(), suite("square"))
    assert 0 < result.robust(LINF, "tiny").sum() < result.natural.sum()
    assert [flag.name for flag in result.flags] == ["no_gradient"]


@pytest.mark.parametrize("attack", ["pgd", "apgd-ce", "fab-t", "square"])
def test_logits_that_become_nan_count_as_wrong_and_are_called_so(attack, tmp_path):
    x, y = strangers.images()
    threat = Threat.parse("linf:0.031")  # not a whole number of 255ths
    for _ in range(2):  # computed, and found on disk
        result = evaluate_suite(
            strangers.NanNearby(), ArraySplit(x, y), suite(attack), threats=[threat], cache=tmp_path
        )
        broken = int(result.natural.sum() - result.robust(threat, "tiny").sum())
        said = [flag.message for flag in result.flags if flag.name == "nan"]
        assert broken or attack == "fab-t"
        assert [f"{broken} attacked (linf:31/1000) images are NaN" in message for message in said] == (
            [True] if broken else []
        )


def test_clean_logits_that_are_nan_beyond_the_probed_images_are_called_so():
    x, y = strangers.images()
    x = torch.cat([x.float() / 255, x[:3].float() / 255 * 0.999])
    split = ArraySplit(x, torch.cat([y, y[:3]]))
    result = evaluate_suite(strangers.NanNearby(), split, suite("square"), threats=[LINF])
    assert "the logits of 3 clean images are NaN" in {
        flag.message.partition(" NaN")[0] + " NaN" for flag in result.flags
    }


def test_what_is_no_module_is_one_line():
    with pytest.raises(UserError, match=r"a function cannot be evaluated; give a torch.nn.Module"):
        attacked(lambda x: x.mean((2, 3)))


@pytest.mark.parametrize("threat", ["linf:8", "l2:128"])
def test_large_radii_are_flagged_before_the_attacks(threat):
    x, y = strangers.images()
    with pytest.warns(UserWarning, match=f"was {threat}/255 meant"):
        result = evaluate_suite(strangers.Plain(), ArraySplit(x, y), suite("pgd"), threats=[Threat.parse(threat)])
    assert "large_eps" in {flag.name for flag in result.flags}


def test_one_image_alone_fails_no_check():
    assert not attacked(strangers.Squeezed(), suite("pgd"), limit=1).flags


@pytest.mark.filterwarnings("ignore")
def test_a_changed_model_is_another_model_behind_its_adapter():
    changed = strangers.PairOut()
    with torch.no_grad():
        changed.fc.bias += 1e-3
    assert attacked(strangers.PairOut(), suite("pgd")).model != attacked(changed, suite("pgd")).model


def test_the_shadow_of_a_contiguous_model_can_view_its_maps():
    """The short convolution and BatchNorm folded in; maps are viewed as rows."""
    model = strangers.WideViewed().eval()
    x = strangers.images()[0].float() / 255
    shadow = folded(model)
    assert shadow is not model
    torch.testing.assert_close(shadow(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_network_that_fails_channels_last_keeps_its_layout_and_trains():
    model = generalist.build_model("strangers:Viewed", classes=3, size=8)
    assert model.network.conv1.weight.is_contiguous()
    x = (strangers.images()[0].float() / 255).contiguous(memory_format=torch.channels_last)
    nn.functional.cross_entropy(model.train()(x), strangers.images()[1]).backward()
    assert model.network.conv1.weight.grad is not None
