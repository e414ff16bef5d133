"""Every public name explains itself, and its example runs as it is printed."""

import doctest
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import generalist
from generalist import attacks
from generalist.core.registry import Registry
from generalist.data.corruptions import corrupt
from generalist.data.corruptions.sequences import perturbed

PLAIN = ("LAYERS", "__version__", "attacks")
PUBLIC = {name: getattr(generalist, name) for name in generalist.__all__ if name not in PLAIN}
ATTACKS = {f"attacks.{name}": attacks.ATTACKS.get(name) for name in attacks.ATTACKS.names()}
CORRUPTIONS = {"corrupt": corrupt, "perturbed": perturbed}
ALL = {**PUBLIC, **ATTACKS, **CORRUPTIONS, "attacks.autoattack": attacks.autoattack, "Registry": Registry}


@pytest.fixture
def registries() -> Iterator[None]:
    """What an example registers is forgotten after it."""
    found = [value for value in PUBLIC.values() if isinstance(value, Registry)]
    before = [dict(registry._entries) for registry in found]
    yield
    for registry, entries in zip(found, before, strict=True):
        registry._entries.clear()
        registry._entries.update(entries)


@pytest.mark.parametrize("name", ALL)
def test_the_example_prints_what_it_says(name: str, registries: None, tmp_path: Path) -> None:
    """`tmp` in an example is a folder for what it writes."""
    text = inspect.getdoc(ALL[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, {"tmp": tmp_path}, name, None, None)
    failures, tried = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(example)
    assert (failures, tried > 0) == (0, True)


@pytest.mark.parametrize("name", [name for name, value in ALL.items() if inspect.isfunction(value)])
def test_a_function_says_what_it_takes_and_gives(name: str) -> None:
    function: Any = ALL[name]
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    assert ("Args:" in text) == bool(signature.parameters)
    assert ("Returns:" in text) == (signature.return_annotation not in (None, "None"))
    described = text.partition("Args:")[2].partition("Returns:")[0]
    assert [argument for argument in signature.parameters if f"{argument}:" not in described] == []


def test_help_opens_with_an_example_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block = (generalist.__doc__ or "").partition("\n\n")[2].partition("The same")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block), names)
    assert names["x_adv"].shape == (10, 1, 8, 8)
    printed = capsys.readouterr().out
    assert printed.count("359 images, accuracy in %") == 2
    assert "digits-generalist-t" in printed
