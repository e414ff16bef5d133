"""Each flag: a model made to trip it, and an honest one that does not."""

import copy

import pytest
import torch
from flawed import Noisy, Quantised, Scaled, Softmax, Trap, digits_model
from torch import nn

from generalist import Threat
from generalist.evaluation.red_flags import (
    black_box,
    examine_model,
    fewer_steps,
    huge_eps,
    large_eps,
    log_probabilities,
    normalisation,
    not_deterministic,
    probabilities,
    train_mode,
    zero_gradients,
)

THREAT = Threat.parse("linf:1/10")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return digits_model(tmp_path_factory.mktemp("run"))


def test_an_honest_model_raises_no_flag_and_is_left_as_it_was(honest):
    model, x, y = honest
    model.train()
    state = copy.deepcopy(model.state_dict())
    before = torch.random.get_rng_state()
    assert examine_model(model, x, y, threat=THREAT) == []
    assert all(module.training for module in model.modules())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_that_draws_noise_is_not_deterministic(honest):
    model, x, _ = honest
    assert not_deterministic(Noisy(model), x).name == "not_deterministic"
    assert not_deterministic(model, x) is None


def test_probabilities_are_not_logits(honest):
    model, x, _ = honest
    assert probabilities(Softmax(model), x).name == "probabilities"
    assert probabilities(model, x) is None


@pytest.mark.parametrize("wrap", [Quantised, Scaled])
def test_masked_gradients_are_zero(honest, wrap):
    model, x, y = honest
    assert "no gradient" in zero_gradients(wrap(model), x, y).message
    assert zero_gradients(model, x, y) is None


@pytest.mark.parametrize("threat", [THREAT, Threat.parse("l2:1/2"), Threat.parse("l1:5")], ids=str)
def test_nothing_honest_survives_a_ball_that_holds_every_image(honest, threat):
    model, x, y = honest
    assert huge_eps(Quantised(model, levels=2), x, y, threat=threat, seed=0).name == "huge_eps"
    assert huge_eps(model, x, y, threat=threat, seed=0) is None


def test_one_long_step_must_not_beat_many(honest):
    model, x, y = honest
    images = torch.full((32, 1, 4, 4), 0.5)
    flag = fewer_steps(Trap(0.1), images, torch.zeros(32, dtype=torch.long), threat=THREAT, seed=0)
    assert flag.name == "fewer_steps"
    assert fewer_steps(model, x, y, threat=THREAT, seed=0) is None


def test_a_model_whose_batchnorm_differs_in_train_mode_is_noticed_and_left_as_it_was(honest):
    model, x, y = honest
    norm = nn.BatchNorm2d(1)
    norm.running_mean += 0.7
    state = copy.deepcopy(norm.state_dict())
    shifted = nn.Sequential(norm, model)
    assert train_mode(shifted, x, y).name == "train_mode"
    assert all(torch.equal(state[key], value) for key, value in norm.state_dict().items())
    assert train_mode(model, x, y) is None


def test_dropout_is_meant_to_differ_in_train_mode(honest):
    model, x, y = honest
    assert train_mode(nn.Sequential(nn.Dropout(0.9), model), x, y) is None


class Refusing(nn.Module):
    """Cannot be run on images outside the box, so not on normalised ones."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if x.min() < 0 or x.max() > 1:
            raise ValueError("pixels lie in 0..1\nalways")
        return self.inner(x)


def test_a_check_that_fails_is_a_flag_and_the_others_are_made(honest):
    model, x, y = honest
    (flag,) = examine_model(Refusing(model), x, y, threat=THREAT)
    assert flag.name == "check_failed"
    assert "normalisation" in flag.message
    assert "ValueError: pixels lie in 0..1" in flag.message
    assert "\n" not in flag.message


def test_log_probabilities_are_noticed(honest):
    model, x, _ = honest
    assert log_probabilities(nn.Sequential(model, nn.LogSoftmax(1)), x).name == "log_probabilities"
    assert log_probabilities(model, x) is None


def test_a_model_that_lacks_its_normalisation_is_told_which_to_give(honest):
    model, x, y = honest
    bare = Denormalised(model, mean=0.1307, std=0.3081)
    assert "--mean 0.1307 --std 0.3081" in normalisation(bare, x, y).message
    assert normalisation(model, x, y) is None
    bare.trained_on = {"name": "digits"}  # as the model of a run, which --mean is refused with
    assert normalisation(bare, x, y) is None


class Denormalised(nn.Module):
    """Wants normalised images, and has no normalisation inside."""

    def __init__(self, inner: nn.Module, *, mean: float, std: float) -> None:
        super().__init__()
        self.inner, self.mean, self.std = inner, mean, std

    def forward(self, x):
        return self.inner(x * self.std + self.mean)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("linf:8", "linf:8/255"), ("linf:1.5", "linf:1.5/255"), ("l2:128", "l2:128/255"), ("l1:3060", "l1:3060/255")],
)
def test_a_forgotten_division_by_255_is_noticed(text, meant):
    assert meant in large_eps(Threat.parse(text), pixels=3 * 8 * 8).message


@pytest.mark.parametrize("text", ["linf:8/255", "linf:1", "l2:3", "l2:13", "l1:12"])
def test_a_usual_radius_is_not(text):
    assert large_eps(Threat.parse(text), pixels=3 * 8 * 8) is None


def test_a_black_box_attack_that_finds_more_is_noticed():
    right = torch.ones(100, dtype=torch.bool)
    survives = torch.ones(100, dtype=torch.bool)
    broken = torch.zeros(100, dtype=torch.bool)
    assert black_box(right, survives, broken) is None
    broken[:5] = True
    assert "5 images" in black_box(right, survives, broken).message
    survives[:5] = False
    assert black_box(right, survives, broken) is None
