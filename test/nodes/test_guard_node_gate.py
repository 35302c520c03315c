"""An irreversible action waits in the real guard until a human answers on guard/approve."""

from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import GuardParameters  # noqa: E402
from chunkpilot.srv import ApproveAction  # noqa: E402
from chunkpilot_core import types  # noqa: E402
from chunkpilot_nodes import convert, qos  # noqa: E402
from helpers.edge import PATIENT, ROBOT  # noqa: E402
import numpy as np  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
OPEN, CLOSED = 0.08, 0.0


@pytest.fixture(scope='module')
def graph(edge: Any) -> Any:
    """Give the edge with a gated guard on it, and a cube of 4 cm between the fingers."""
    edge.positions[7:] = 0.02
    edge.parameters = []
    edge.node.create_subscription(
        GuardParameters, 'guard/parameters', edge.parameters.append, qos.LATCHED
    )
    edge.start('guard_node', *PATIENT, 'gate.opening:=human', 'gate.approve_s:=12.0')
    edge.ready()
    edge.seq, edge.width = 0, CLOSED
    edge.node.create_timer(0.01, lambda: command(edge, edge.width))  # also while it is asked
    return edge


def command(edge: Any, width: float) -> None:
    edge.seq += 1
    groups = (
        types.CommandGroup(
            'arm',
            types.Kind.JOINT_POSITION,
            edge.positions[:7].copy(),
            np.zeros(0),
            names=ROBOT.arm_joints,
        ),
        types.CommandGroup('gripper', types.Kind.GRIPPER, np.array([width]), np.zeros(1)),
    )
    now_ns, epoch = edge.node.get_clock().now().nanoseconds, int(edge.states[-1].arm_epoch)
    told = types.Command(types.Id(77, edge.seq), now_ns, epoch, groups)
    edge.commands.publish(convert.command_to_msg(told))


def go(edge: Any, width: float, until: Any, longest_s: float = 10.0) -> bool:
    """Command a width until something is so, and go on so."""
    edge.width = width
    return bool(edge.run(longest_s, until))


def sent(edge: Any) -> float:
    return float(sum(edge.gripper[-1].data)) if edge.gripper else float('nan')


def gripped(edge: Any) -> None:
    edge.width = CLOSED
    edge.armed()
    assert go(edge, CLOSED, lambda: sent(edge) == 0.0)
    go(edge, CLOSED, lambda: False, 0.3)
    edge.guard_events.clear()


def gated(edge: Any, what: str) -> list[Any]:
    return [event for event in edge.guard_events if event.check == f'gate_{what}']


def test_it_waits_says_for_what_and_opens_when_approved(graph: Any) -> None:
    gripped(graph)
    assert go(graph, OPEN, lambda: gated(graph, 'waiting'))
    waiting = gated(graph, 'waiting')[0]
    assert waiting.kind == 'gate'
    assert waiting.joint == 'gripper'
    assert "guard/approve of channel 'gripper'" in waiting.reason
    go(graph, OPEN, lambda: False, 0.3)
    assert sent(graph) == 0.0
    answer = graph.call('guard/approve', ApproveAction, channel='lid', approved=True)
    assert not answer.success
    assert 'waiting: gripper' in answer.message
    answer = graph.call(
        'guard/approve', ApproveAction, channel='gripper', approved=True, operator_name='Ada'
    )
    assert answer.success, answer.message
    assert go(graph, OPEN, lambda: sent(graph) > 0.0 and gated(graph, 'allowed'))
    requests = [event for event in graph.guard_events if event.kind == 'request']
    assert [(event.check, event.joint) for event in requests] == [
        ('approve', 'lid'),
        ('approve', 'gripper'),
    ]
    assert 'approved by Ada' in gated(graph, 'allowed')[0].reason


@pytest.mark.matrix(41)
def test_nobody_answers_so_it_stays_closed(graph: Any) -> None:
    """Row 41 of the fault matrix."""
    gripped(graph)
    assert go(graph, OPEN, lambda: gated(graph, 'denied'), 40.0)
    assert 'nobody approved within 12 s' in gated(graph, 'denied')[0].reason
    go(graph, OPEN, lambda: False, 0.3)
    assert sent(graph) == 0.0
    assert not graph.call('guard/approve', ApproveAction, channel='', approved=True).success


def test_stops_do_not_open_what_waits(graph: Any) -> None:
    gripped(graph)
    assert go(graph, OPEN, lambda: gated(graph, 'waiting'))
    graph.guard('stop')
    go(graph, OPEN, lambda: False, 0.3)
    assert graph.state is types.ArmState.STOPPED
    assert sent(graph) == 0.0


def test_what_is_in_force_is_latched_for_who_comes_later(graph: Any) -> None:
    told = graph.parameters[-1]
    values = dict(zip(told.names, told.values, strict=True))
    assert values['gate.opening'] == '"human"'
    assert values['gate.approve_s'] == '12.0'
    assert values['joint_state.hold_s'] == '0.6'
    assert told.limits_hash == graph.states[-1].limits_hash
    assert 'panda_joint1' in told.robot_yaml


def test_diagnostics_say_what_it_does_why_and_what_it_costs(graph: Any) -> None:
    from diagnostic_msgs.msg import DiagnosticArray

    told: list[Any] = []
    graph.node.create_subscription(DiagnosticArray, '/diagnostics', told.append, 10)
    gripped(graph)
    assert go(graph, OPEN, lambda: gated(graph, 'waiting'))

    def values() -> dict[str, str]:
        own = [status for array in told for status in array.status if 'guard_node' in status.name]
        return {pair.key: pair.value for pair in own[-1].values} if own else {}

    assert go(graph, OPEN, lambda: 'gripper' in values().get('waits_for', ''), 20.0)
    now = values()
    assert now['state'] == 'ARMED'
    assert 'by gate: opening gripper' in now['last_reason']
    assert "'CLAMP': " in now['ticks_by_reaction']
    for name in ('tick_cpu_ms_p50', 'tick_cpu_ms_p99', 'period_ms_p50', 'period_ms_p99'):
        assert float(now[name]) > 0.0
