from generalist.core.names import SUITE_NAMES
from generalist.evaluation import load_suite
from generalist.evaluation.suite import _shipped


def test_the_names_that_are_known_before_torch_are_those_of_the_shipped_suites() -> None:
    assert tuple(_shipped()) == SUITE_NAMES
    assert [load_suite(name).name for name in SUITE_NAMES] == list(SUITE_NAMES)
