"""YAML from anybody: what a recipe may say is read, everything else is one short line."""

import pytest

from generalist.core.errors import LONGEST_VALUE, UserError, one_line, shown
from generalist.core.yaml_text import parse_yaml

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
LADDER = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))

REFUSED = {
    "duplicate": ("a: 1\nb: 2\na: 3", "line 3: key 'a' is given twice"),
    "duplicate-inside": ("a: {b: 1, 'b': 2}", "line 1: key 'b' is given twice"),
    "deep": ("[" * 3000, "levels deep"),
    "deep-block": ("\n".join("  " * level + "a:" for level in range(60)), "line 50: nested more than 50"),
    "alias-bomb": (BOMB, "more than 20000 values"),
    "alias-ladder": (LADDER, "line 50: nested more than 50"),
    "alias-loop": ("a: &a [*a]", "contains itself"),
    "many": ("[" + "1, " * 30_000 + "1]", "more than 20000 values"),
    "long": ("x" * 1_000_001, "1000001 characters"),
    "int-tag": ("seed: !!int x", "does not fit its tag"),
    "bool-tag": ("seed: !!bool x", "does not fit its tag"),
    "float-tag": ("seed: !!float ''", "does not fit its tag"),
    "digits": (f"seed: {'9' * 5000}", "line 1: a number of 5000 characters"),
    "hex": (f"seed: 0x{'f' * 5000}", "a number of 5002 characters"),
    "python": ("a: !!python/object/apply:os.system [ls]", "line 1"),
    "binary": ("a: !!binary aGk=", "line 1"),
    "set": ("a: !!set {b, c}", "line 1"),
    "date-tag": ("a: !!timestamp 2020-01-01", "line 1"),
    "int-key": ("a: {1: 2}", "key '1' is not text"),
    "list-key": ("a: {[1]: 2}", "is not text"),
    "no-alias": ("a: *b", "line 1"),
    "tab": ("a:\n\tb: 1", "line 2"),
    "control": ("a: \x00", "not readable YAML"),
    "two-documents": ("a: 1\n---\nb: 2", "line 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_in_one_short_line(case: str) -> None:
    text, says = REFUSED[case]
    with pytest.raises(UserError) as refused:
        parse_yaml(text, "mine.yaml")
    message = str(refused.value)
    assert message.startswith("mine.yaml is not readable YAML: ")
    assert says in message
    assert len(message) < 400
    assert len(message.splitlines()) == 1


def test_anchors_and_merges_work_and_may_be_overridden() -> None:
    text = "a: &a {x: 1, y: {z: [1, 2.5, yes, null, s]}}\nb: {<<: *a, x: 2}\nc: &c {<<: *a, x: 3}\nd: {<<: *c, w: *a}"
    inner = {"z": [1, 2.5, True, None, "s"]}
    assert parse_yaml(text, "") == {
        "a": {"x": 1, "y": inner},
        "b": {"x": 2, "y": inner},
        "c": {"x": 3, "y": inner},
        "d": {"x": 3, "y": inner, "w": {"x": 1, "y": inner}},
    }


def test_a_date_is_text() -> None:
    assert parse_yaml("name: 2020-01-01", "") == {"name": "2020-01-01"}


LONG = {
    "text": "x" * 10**6,
    "list": list(range(10**5)),
    "texts": {"a": ["y" * 10**5] * 100},
    "integer": 10**6000,
    "integers": [10**6000],
}


@pytest.mark.parametrize("case", LONG)
def test_a_value_in_a_message_is_cut_short(case: str) -> None:
    assert len(shown(LONG[case])) <= LONGEST_VALUE + 1


def test_a_small_value_is_shown_whole() -> None:
    value = {"a": [1, 2.5, None, "text"], "b": {"c": (1,)}}
    assert shown(value) == repr(value)


def test_a_message_is_one_line_whatever_is_in_it() -> None:
    assert one_line("a\nb\r\x1b[31m\x00 c") == "a b [31m c"
    assert len(one_line("x" * 10**6)) < 1000
