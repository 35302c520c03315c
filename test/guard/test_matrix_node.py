"""Rows of the fault matrix on the real guard: another process makes its inputs go wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.edge import Edge, own_edge
import pytest

pytest.importorskip('rclpy')
from chunkpilot_core.types import ArmState
import numpy as np

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]

# States are old before they count as frozen, and a loaded machine does not stop the arm.
PATIENT = (
    'ramp_s:=0.3',
    'joint_state.hold_s:=0.25',
    'joint_state.stop_s:=5.0',
    'ladder_count:=100',
)
# The arm swings; frozen for 2 s it is long enough in motion, wherever it turns.
PLAN = """
begin: armed
topics:
  joint_states:
    - {kind: nan, index: 3, start_s: 8.0, end_s: 8.3}
    - {kind: freeze, start_s: 18.0, end_s: 20.0}
    - {kind: drop, start_s: 23.0, end_s: 24.0}
  command:
    - {kind: drop, start_s: 13.0, end_s: 13.6}
    - {kind: inf, field: 'groups[0].values', index: 0, start_s: 28.0, end_s: 28.2}
"""
EXPECTED = (
    (8, 'is nan'),
    (18, 'no acceptable command'),
    (22, 'frozen'),
    (23, 's old'),
    (2, 'inf'),
)
"""Row, and words of the hold, in this order."""


@pytest.fixture
def relayed() -> Iterator[Edge]:
    with own_edge('clean/') as edge:
        yield edge


@pytest.mark.matrix(2, 8, 18, 22, 23)
def test_each_fault_holds_the_real_arm_and_lets_it_go_again(relayed: Any, tmp_path: Path) -> None:
    edge = relayed
    file = tmp_path / 'faults.yaml'
    file.write_text(PLAN)
    injector = edge.start(
        'fault_injector_node', f'file:={file}', 'relays:=[joint_states, command]'
    )
    guard = edge.start('guard_node', *PATIENT)
    edge.sender(speed=0.2)
    edge.ready()
    edge.armed()
    assert edge.run(20.0, edge.moving)

    def holds() -> list[str]:
        return [
            event.reason
            for event in edge.guard_events
            if event.kind == 'transition' and event.to_state == int(ArmState.HOLD)
        ]

    before = 0
    for row, words in EXPECTED:
        found = lambda: any(words in reason for reason in holds()[before:])  # noqa: B023, E731
        assert edge.run(20.0, found), (row, words, holds())
        before = len(holds())
        assert edge.state is not ArmState.STOPPED
        assert edge.run(10.0, lambda: edge.state is ArmState.ARMED), (row, edge.states[-1].causes)
    assert edge.run(10.0, edge.moving)
    assert guard.poll() is None
    assert injector.poll() is None
    sent = np.array([msg.data for _, msg in edge.arm])
    assert np.isfinite(sent).all()
    assert np.abs(np.diff(sent, axis=0)).max() <= 2.61 * 0.031, 'no jump, in no tick'
