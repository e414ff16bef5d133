import pytest
import torch
from torch import nn

import generalist
from generalist import Threat, build_model
from generalist.data import ArraySplit
from generalist.evaluation import evaluate_split
from generalist.evaluation.accuracy import wilson

THREATS = [Threat.parse("linf:1/10"), Threat.parse("l2:1/2")]


class Brightness(nn.Module):
    """Class 1 where the mean pixel is above ½: the robust images under ℓ∞ are those farther than eps from it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        z = (x.mean((1, 2, 3)) - 0.5) * self.scale
        return torch.stack([-z, z], 1)


def flat_images(levels):
    return torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


def test_known_answers_on_images_of_one_level():
    levels = [0.1, 0.35, 0.45, 0.55, 0.65, 0.9, 0.2]
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    result = evaluate_split(Brightness(), ArraySplit(flat_images(levels), labels), threats=THREATS[:1])
    assert result.natural.tolist() == [True] * 6 + [False]
    assert result.robust[THREATS[0]].tolist() == [True, True, False, False, True, True, False]
    record = result.record()
    assert record["natural"] == pytest.approx(85.71)
    assert record["robust"] == {"linf:1/10": pytest.approx(57.14)}
    assert record["attack"] == "PGD20"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    recipe = generalist.load_recipe(
        "digits-at", ["training.epochs=3", "model.width=8", "learners.linf.objective.steps=3"]
    )
    return generalist.train(recipe, out=tmp_path_factory.mktemp("run") / "at").model()


@pytest.fixture(scope="module")
def split():
    return generalist.load_dataset("digits").test.take(torch.arange(120))


def test_verdicts_do_not_depend_on_batch_size_or_order(trained, split):
    whole = evaluate_split(trained, split, threats=THREATS, steps=5)
    for batch_size, images in ((1, 24), (7, 120), (64, 120)):
        some = split.take(torch.arange(images))
        part = evaluate_split(trained, some, threats=THREATS, steps=5, batch_size=batch_size)
        assert torch.equal(part.natural, whole.natural[:images])
        for threat in THREATS:
            assert torch.equal(part.robust[threat], whole.robust[threat][:images])
        assert 0 < part.robust[THREATS[0]].sum() < part.natural.sum()


def test_unions_are_told_apart(trained, split):
    result = evaluate_split(trained, split, threats=THREATS, steps=5)
    record = result.record()
    assert record["mean_over_norms"] == pytest.approx(sum(record["robust"].values()) / 2)
    assert record["true_union"] <= min(record["robust"].values()) <= record["natural"]
    assert torch.equal(result.union, result.natural & result.robust[THREATS[0]] & result.robust[THREATS[1]])


def test_more_eps_or_steps_never_help_the_model(trained, split):
    def robust(eps, steps):
        threat = Threat.parse(f"linf:{eps}")
        return evaluate_split(trained, split, threats=[threat], steps=steps).robust[threat].sum().item()

    assert robust("1/20", 10) >= robust("1/10", 10) >= robust("1/5", 10) >= robust("1/2", 10)
    assert robust("1/10", 1) >= robust("1/10", 20)


def test_the_mode_of_every_module_is_put_back(trained, split):
    trained.train()
    trained.network.bn1.eval()
    modes = [module.training for module in trained.modules()]
    evaluate_split(trained, split, threats=THREATS[:1], steps=1, limit=20)
    assert [module.training for module in trained.modules()] == modes


def test_any_model_and_any_images(split):
    model = build_model("small_cnn", classes=10, channels=1, size=8, width=2)
    images = split.images.float() / 255
    result = generalist.evaluate(model, (images, split.labels), threats=["linf:1/10"], images=30)
    assert len(result.natural) == 30
    with pytest.raises(generalist.UserError, match=r"\[0, 1\]"):
        generalist.evaluate(model, (images * 255, split.labels), threats=["linf:1/10"])


def test_progress_is_told(split):
    model, seen = build_model("small_cnn", classes=10, channels=1, size=8, width=2), []
    evaluate_split(model, split, batch_size=50, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(50, 120), (100, 120), (120, 120)]


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_as_printed_by_newcombe_1998(right, count, low, high):
    assert wilson(right, count) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(count - right, count)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)
