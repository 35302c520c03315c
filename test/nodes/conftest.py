"""Shared by the tests of nodes: the robot side of a graph, or two nodes that meet."""

from collections.abc import Iterator
from typing import Any

from helpers.edge import Edge, own_edge
import pytest


@pytest.fixture(scope='module')
def edge() -> Iterator[Edge]:
    """Give a domain of its own with a robot in it."""
    pytest.importorskip('rclpy')
    with own_edge() as edge:
        yield edge


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Give two nodes with contexts of their own in a domain of their own."""
    rclpy = pytest.importorskip('rclpy')
    import domain_coordinator

    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    with domain_coordinator.domain_id() as domain:
        contexts = [rclpy.Context(), rclpy.Context()]
        for context in contexts:
            rclpy.init(context=context, domain_id=domain)
        made = [rclpy.create_node(f'node{i}', context=c) for i, c in enumerate(contexts)]
        yield made[0], made[1]
        for node, context in zip(made, contexts, strict=True):
            node.destroy_node()
            rclpy.shutdown(context=context)
