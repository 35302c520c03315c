"""Shared by the tests of the guard."""

from helpers.guard import GuardBench
import pytest


@pytest.fixture
def bench() -> type[GuardBench]:
    """Return the class, so that a test can give options."""
    return GuardBench
