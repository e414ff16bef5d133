from typing import Annotated

import pytest
from pydantic import Field

from generalist import Threat, UserError
from generalist.core.registry import Registry


@pytest.fixture
def registry():
    registry = Registry("method", runtime=("now",))

    @registry.register("fast")
    def fast(x, *, now: int, threat: Threat, steps: Annotated[int, Field(ge=1)] = 3):
        return x, now, threat, steps

    return registry


def test_bound_options_are_checked_and_completed(registry):
    bound = registry.bind("fast", {"threat": "l2:1/2"})
    assert bound(0, now=5) == (0, 5, Threat.parse("l2:1/2"), 3)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [("fsat", {}, "did you mean 'fast'"), ("fast", {"stpes": 1}, "did you mean 'steps'"),
     ("fast", {"threat": "l2:1", "steps": 0}, "greater than or equal to 1, got 0"),
     ("fast", {}, "threat: Field required"),
     ("fast", {"threat": "l2:1", "now": 1}, "unknown field"), ("fast", {"threat": "l2:-1"}, "eps must be > 0")],
)  # fmt: skip
def test_a_mistake_is_named_with_what_would_do(registry, name, options, says):
    with pytest.raises(UserError, match=says) as error:
        registry.bind(name, options)
    assert "\n" not in str(error.value)


def test_a_name_is_registered_once(registry):
    with pytest.raises(ValueError, match="twice"):
        registry.register("fast")(lambda: None)
