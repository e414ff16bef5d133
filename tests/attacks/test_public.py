"""What every public name of the attacks promises: a threat as text, and a docstring whose example runs."""

import doctest
import inspect

import pytest
import torch

from generalist import Threat, UserError, attacks, fastpass
from generalist.attacks import ATTACKS, stage_streams
from generalist.core.registry import Registry
from generalist.core.rng import generator

SHORT = {"queries": 5, "steps": 2}
BY_NAME = {name: ATTACKS.get(name) for name in ATTACKS.names()}
TAKE_A_THREAT = BY_NAME | {name: getattr(attacks, name) for name in ("fgsm", "apgd", "fab_distance", "autoattack")}
PUBLIC = [Threat, Threat.parse, fastpass.prepared, fastpass.switched_off] + [
    value for name in attacks.__all__ if callable(value := getattr(attacks, name)) and not isinstance(value, Registry)
]


def model_and_images():
    x = torch.rand(4, 1, 8, 8, generator=generator("x"))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5))
    with torch.no_grad():
        model[1].weight.uniform_(-1, 1, generator=generator("weight"))
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("name", TAKE_A_THREAT)
def test_a_threat_may_be_given_as_text(name):
    attack, (model, x, y) = TAKE_A_THREAT[name], model_and_images()
    options = {option: value for option, value in SHORT.items() if option in inspect.signature(attack).parameters}
    given = [attack(model, x, y, threat=threat, **options) for threat in (Threat.parse("l2:1/2"), "l2:1/2")]
    torch.testing.assert_close(given[0], given[1], rtol=0, atol=0)
    with pytest.raises(UserError, match="norm:eps"):
        attack(model, x, y, threat="8/255", **options)


def test_the_parts_of_an_attack_take_a_threat_as_text():
    _, x, _ = model_and_images()
    threat, step = Threat.parse("l1:2"), {"step_size": 0.5}
    assert torch.equal(*(attacks.ascend(x, x, x - 0.5, threat=given, **step) for given in (threat, "l1:2")))
    assert torch.equal(*(stage_streams(0, "Square", given, x).uniform(3) for given in (threat, "l1:2")))


def name_of(value):
    return value.__qualname__


@pytest.mark.parametrize("value", PUBLIC, ids=name_of)
def test_every_public_name_says_what_it_takes_and_gives(value):
    text, parameters = inspect.getdoc(value), inspect.signature(value).parameters
    summary = text.split("\n\n")[0]
    assert "\n" not in summary
    for section in ["Args:"] * bool(parameters) + ["Returns:"] * (not isinstance(value, type)) + ["Example:"]:
        assert f"\n{section}\n" in text, section
    assert [name for name in parameters if f"\n    {name}: " not in text] == []


@pytest.mark.parametrize("value", PUBLIC, ids=name_of)
def test_every_example_runs(value):
    function = inspect.unwrap(value)
    examples = doctest.DocTestFinder(recurse=False).find(function, name=name_of(value), globs={})
    assert sum(len(found.examples) for found in examples) > 0
    for found in examples:
        assert doctest.DocTestRunner(verbose=False).run(found).failed == 0
