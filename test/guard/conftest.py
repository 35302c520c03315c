"""Shared by the tests of the guard as a whole: its bench, and the robot side of a graph."""

from collections.abc import Iterator

from helpers.edge import Edge, own_edge
from helpers.guard import GuardBench
import pytest


@pytest.fixture
def bench() -> type[GuardBench]:
    """Return the class, so that a test can give options."""
    return GuardBench


@pytest.fixture(scope='module')
def edge() -> Iterator[Edge]:
    """Give a domain of its own with a robot in it."""
    pytest.importorskip('rclpy')
    with own_edge() as edge:
        yield edge
