"""The examples of public names run as they are printed."""

import doctest
import inspect

import pytest

import generalist
from generalist.core.registry import Registry

NAMES = [name for name in generalist.__all__ if ">>>" in (inspect.getdoc(getattr(generalist, name)) or "")]


@pytest.fixture
def registries():
    """What an example registers is forgotten after it."""
    found = [value for name in generalist.__all__ if isinstance(value := getattr(generalist, name), Registry)]
    before = [dict(registry._entries) for registry in found]
    yield
    for registry, entries in zip(found, before, strict=True):
        registry._entries.clear()
        registry._entries.update(entries)


@pytest.mark.parametrize("name", [*NAMES, "Registry"])
def test_the_example_prints_what_it_says(name, registries):
    text = inspect.getdoc(Registry if name == "Registry" else getattr(generalist, name))
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    failures, tried = doctest.DocTestRunner().run(example)
    assert (failures, tried > 0) == (0, True)
