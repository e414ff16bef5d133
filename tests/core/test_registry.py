import sys
from typing import Annotated

import pytest
from pydantic import Field

from generalist import Threat, UserError
from generalist.core.registry import Registry
from generalist.core.user_code import is_reference


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


SOURCE = """
import sys
from typing import Annotated
from pydantic import Field

def slow(x, *, now, steps: Annotated[int, Field(ge=1)] = 3):
    return x, now, steps

class Space:
    inner = staticmethod(slow)

def loose(x, steps=3, *, now):
    return x

def without_now(x):
    return x

def too_many(x, y, *, now):
    return x

def unreadable(x, *, now, steps: "NoSuchType" = 3):
    return x

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A registry, and modules in the current folder, which is not on the import path."""
    files = {"own_code": SOURCE, "own_broken": "import no_such_thing\n", "own_raises": "1 / 0\n",
             "own_exits": "raise SystemExit(3)\n", "own_syntax": "def :\n"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield Registry("method", runtime=("now",), called="x, *, now")
    for name in files:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", ["slow", "Space.inner"])
def test_a_name_with_a_colon_is_imported_from_the_current_folder(own, path):
    before = list(sys.path)
    assert own.bind(f"own_code:{path}", {"steps": 5})(0, now=1) == (0, 1, 5)
    assert own.check(f"own_code:{path}", {}) == {"steps": 3}
    assert sys.path == before
    assert own.names() == []


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [("no_such:f", {}, "no module 'no_such' in the current directory or among the installed packages"),
     ("own_code.deeper:f", {}, "no module 'own_code.deeper'"),
     ("own_code:slwo", {}, "did you mean 'slow'?"), ("own_code:number", {}, "is a int; it must be a function or class"),
     ("own_code:", {}, "module:callable"), (":slow", {}, "module:callable"), (".own_code:slow", {}, "failed"),
     ("own_broken:f", {}, "importing 'own_broken' failed: No module named 'no_such_thing'"),
     ("own_raises:f", {}, "importing 'own_raises' failed: ZeroDivisionError: division by zero"),
     ("own_exits:f", {}, "importing 'own_exits' failed: SystemExit: 3"), ("own_syntax:f", {}, "SyntaxError"),
     ("own_code:slow", {"stpes": 1}, "did you mean 'steps'?"), ("own_code:slow", {"steps": 0}, "steps: .* got 0"),
     ("own_code:slow", {"now": 1}, "unknown field"), ("own_code:loose", {"steps": 1}, "put it after \\*"),
     ("own_code:without_now", {}, r"takes \(x\); it is called with \(x, \*, now\)"),
     ("own_code:too_many", {}, r"takes \(x, y, \*, now\); it is called with"),
     ("own_code:unreadable", {}, "NoSuchType"), ("builtins:min", {}, "signature cannot be read"),
     ("os:system", {}, r"it is called with")],
)  # fmt: skip
def test_a_mistake_in_code_of_ones_own_is_one_line(own, name, options, says):
    with pytest.raises(UserError, match=says) as error:
        own.bind(name, options)
    assert "\n" not in str(error.value)


def test_what_cannot_be_called_as_it_will_be_is_not_registered(own):
    with pytest.raises(UserError, match="it is called with"):
        own.register("bad")(lambda x, y: x)
    with pytest.raises(ValueError, match="colon"):
        own.register("a:b")(lambda x, *, now: x)
    assert own.names() == []


def test_a_class_that_stands_for_its_instances_is_made_with_fields():
    registry = Registry("method", called="x, *, now", instances=True)

    @registry.register("made")
    class Made:
        def __init__(self, *, steps: int = 2) -> None:
            self.steps = steps

    class Positional:
        def __init__(self, steps: int) -> None:
            self.steps = steps

    assert registry.bind("made", {"steps": 3})().steps == 3
    with pytest.raises(UserError, match="made with keyword-only fields"):
        registry.register("positional")(Positional)


@pytest.mark.parametrize(("text", "answer"), [("a:b", True), ("a.b:c.d", True), ("a", False), ("a/b:c", False),
                                              ("a:b.c:d", False), ("C:\\data", False), (":b", False)])  # fmt: skip
def test_a_reference_is_told_from_a_path(text, answer):
    assert is_reference(text) is answer


def test_a_list_of_what_is_known_is_not_longer_than_a_line_can_be():
    with pytest.raises(UserError, match="unknown name in module 'os': 'qqq'; known: ") as error:
        Registry("method", runtime=()).get("os:qqq")
    assert len(str(error.value)) < 1100
