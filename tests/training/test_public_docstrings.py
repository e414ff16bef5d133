"""Public names of training, objectives and types: each has a docstring whose example runs."""

import doctest

import pytest

import generalist


@pytest.mark.parametrize("name", ["Batch", "Learner", "LossTerms", "OBJECTIVES"])
def test_the_example_of_a_docstring_runs(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(generalist, name), name)
    assert any(test.examples for test in found)
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0
