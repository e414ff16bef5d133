"""Tests that take minutes: `make long` runs them, and so does $GENERALIST_ALL_TESTS=1 with pytest."""

import os

import pytest

ALL = bool(os.environ.get("GENERALIST_ALL_TESTS"))
LONG = pytest.mark.skipif(not ALL, reason="minutes; `make long` runs it")
