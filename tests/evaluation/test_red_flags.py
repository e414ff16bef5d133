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


def test_a_model_that_differs_in_train_mode_is_noticed(honest):
    model, x, y = honest
    dropped = nn.Sequential(nn.Dropout(0.9), model)
    assert train_mode(dropped, x, y).name == "train_mode"
    assert train_mode(model, x, y) is None


def test_a_black_box_attack_that_finds_more_is_noticed():
    right = torch.ones(100, dtype=torch.bool)
    survives = torch.ones(100, dtype=torch.bool)
    broken = torch.zeros(100, dtype=torch.bool)
    assert black_box(right, survives, broken) is None
    broken[:5] = True
    assert "5 images" in black_box(right, survives, broken).message
    survives[:5] = False
    assert black_box(right, survives, broken) is None
