"""watchdog_node as a real process: a dead guard stops the driver, an idle one does not."""

import signal
import time
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot_core.types import ArmState  # noqa: E402
from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]


def asked(edge: Any, name: str) -> bool:
    return any(call == name for _, call in edge.calls)


def watches(edge: Any) -> bool:
    """Wait until the watchdog says that it knows the guard to be armed."""
    seen: list[str] = []

    def hear(msg: DiagnosticArray) -> None:
        told = (status for status in msg.status if 'watchdog' in status.name)
        seen.extend(v.value for status in told for v in status.values if v.key == 'guard_state')

    hearing = edge.node.create_subscription(DiagnosticArray, '/diagnostics', hear, 10)
    try:
        knows = edge.run(20.0, lambda: seen[-1:] == ['ARMED'])
        assert knows, (seen, edge.state, [event.reason for event in edge.guard_events[-5:]])
        return True
    finally:
        edge.node.destroy_subscription(hearing)


@pytest.mark.matrix(50)
def test_a_guard_killed_in_motion_stops_the_driver_and_a_new_one_frees_it(edge: Any) -> None:
    """Row 50."""
    guard = edge.start_guard()
    watchdog = edge.start('watchdog_node')
    sender = edge.sender()  # before it is armed: while processes start, a guard may be late
    edge.ready()
    assert edge.run(20.0, lambda: edge.node.count_subscribers('verdict') == 2)
    assert edge.run(20.0, lambda: edge.node.count_publishers('command'))
    edge.run(1.5)
    assert not edge.calls, 'an idle guard does not trip it'
    edge.armed()
    assert watches(edge)
    assert edge.run(20.0, edge.moving)
    assert not edge.calls
    guard.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert edge.run(3.0, lambda: asked(edge, 'stop'))
    assert edge.calls[0][0] - killed < 0.6
    sender.kill()
    edge.states.clear()
    edge.start_guard()
    assert edge.run(20.0, lambda: edge.state is ArmState.DISARMED)
    assert edge.run(5.0, lambda: asked(edge, 'clear'))
    edge.ready()
    assert edge.guard('arm').success
    watchdog.send_signal(signal.SIGINT)
    assert watchdog.wait(10) == 0


def test_a_guard_that_only_slept_is_stopped_until_it_is_reset(edge: Any) -> None:
    if not edge.processes:  # run alone
        edge.start_guard()
        edge.ready()
    guard = edge.processes[-1]
    edge.armed()
    # DDS forgets who has died after 20 s.
    assert edge.run(40.0, lambda: edge.node.count_subscribers('verdict') == 1), 'the one before'
    edge.start('watchdog_node')
    assert watches(edge)
    edge.calls.clear()
    guard.send_signal(signal.SIGSTOP)
    assert edge.run(3.0, lambda: asked(edge, 'stop'))
    guard.send_signal(signal.SIGCONT)
    assert edge.run(5.0, lambda: edge.state in (ArmState.ESTOP, ArmState.STOPPED))
    assert edge.stopped
    assert edge.run(5.0, lambda: edge.states[-1].can_reset), edge.states[-1].why_not
    assert edge.guard('reset').success
    assert edge.run(5.0, lambda: not edge.stopped)
    assert edge.state is ArmState.DISARMED
