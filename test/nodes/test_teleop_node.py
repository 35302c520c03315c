"""The node between a gamepad and the guard, both as processes, on real DDS."""

import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import Intervention, PolicyInfo
from chunkpilot_nodes import qos
from sensor_msgs.msg import JointState, Joy
from std_srvs.srv import SetBool

pytestmark = [pytest.mark.ros, pytest.mark.timeout(180)]


class Pad:
    """A gamepad that speaks at 50 Hz."""

    def __init__(self, edge) -> None:
        self.edge, self.forward, self.held = edge, 0.0, False
        self.words: list[Intervention] = []
        self.infos: list[PolicyInfo] = []
        self._out = edge.node.create_publisher(Joy, 'joy', qos.SENSOR)
        edge.node.create_subscription(
            Intervention, 'intervention', self.words.append, qos.RELIABLE_10
        )
        edge.node.create_subscription(PolicyInfo, 'policy/info', self.infos.append, qos.LATCHED)
        self._timer = edge.node.create_timer(0.02, self.speak)

    def speak(self) -> None:
        buttons = [0] * 11
        buttons[4] = int(self.held)
        msg = Joy(axes=[0.0, self.forward, *[0.0] * 6], buttons=buttons)
        msg.header.stamp = self.edge.node.get_clock().now().to_msg()
        self._out.publish(msg)

    @property
    def active(self) -> bool:
        return bool(self.words) and self.words[-1].active


def drive(edge, pad, until) -> bool:
    """Press and push; a hold on a loaded machine wants the button to be pressed anew."""
    pad.forward = 1.0
    for _ in range(6):
        pad.held = False
        edge.run(0.3)
        pad.held = True
        if edge.run(4.0, until):
            return True
    return False


@pytest.fixture(scope='module')
def pad(edge):
    edge.start_guard()
    edge.start('teleop_node', 'source:=joy', 'announce_space:=true')
    pad = Pad(edge)
    assert edge.run(60.0, lambda: edge.states and pad.words and pad.infos), 'not heard of'
    edge.ready()
    return pad


def test_held_and_pushed_the_arm_moves_through_the_guard_and_released_it_stops(edge, pad):
    edge.armed()
    pad.held, pad.forward = False, 1.0
    assert not edge.run(1.0, edge.moving)
    start = edge.positions[:7].copy()
    assert drive(edge, pad, lambda: np.abs(edge.positions[:7] - start).max() > 0.05)
    assert any(word.active for word in pad.words)
    assert 'teleop' in {verdict.source for verdict in edge.verdicts[-50:]}
    pad.held = False
    assert edge.run(5.0, lambda: not pad.active)
    assert edge.run(3.0, lambda: not np.any(edge.verdicts[-1].sent_velocity))
    assert edge.state.name == 'ARMED'  # stood down, not held
    told = [event.reason for event in edge.guard_events if event.check == 'control']
    assert told[0] == 'teleop has control'
    assert 'given control back' in told[-1]


def test_rows_are_told_in_the_space_that_the_teleoperator_announces(edge, pad):
    info = pad.infos[-1]
    assert (info.policy, info.name, info.ready) == ('teleop', 'joy', True)
    assert info.dt == pytest.approx(0.04)


def test_disabled_by_service_nothing_moves_until_enabled(edge, pad):
    edge.armed()
    pad.held, pad.forward = False, 1.0
    edge.run(0.3)
    assert edge.call('teleop/enable', SetBool, data=False).success
    pad.held = True
    assert not edge.run(1.0, edge.moving)
    assert edge.call('teleop/enable', SetBool, data=True).success
    assert drive(edge, pad, lambda: pad.active)
    pad.held = False
    assert edge.run(5.0, lambda: not pad.active)


def test_after_an_axis_of_nan_the_button_has_to_be_pressed_anew(edge, pad):
    edge.armed()
    assert drive(edge, pad, lambda: pad.active)
    for _ in range(3):  # a message may get lost
        pad.forward = float('nan')
        pad.speak()
        pad.forward = 1.0
        if edge.run(1.0, lambda: not pad.active):
            break
    assert not pad.active
    assert not edge.run(1.5, lambda: pad.active)  # held all the time
    assert drive(edge, pad, lambda: pad.active)
    pad.held = False
    assert edge.run(5.0, lambda: not pad.active)


def test_a_second_teleoperator_that_starts_and_ends_takes_no_control_away(edge, pad):
    edge.armed()
    second = edge.start('teleop_node', 'source:=leader')
    edge.processes.remove(second)
    pad.forward, pad.held = 0.0, False
    edge.run(0.3)
    try:
        assert edge.run(30.0, lambda: edge.node.count_publishers('intervention') == 2)
        for _ in range(3):  # a hold on a loaded machine takes control away, too
            assert drive(edge, pad, lambda: pad.active)
            pad.forward, told = 0.0, len(edge.guard_events)
            if not edge.run(3.0, lambda: not pad.active):
                break
        assert pad.active, [event.reason for event in edge.guard_events[told:]]
        second.terminate()
        second.wait(20)
        edge.run(1.0)
    finally:
        second.kill()
    given_back = [e.reason for e in edge.guard_events[told:] if e.check == 'control']
    assert not any('given control back' in reason for reason in given_back), given_back
    pad.held = False
    assert edge.run(5.0, lambda: not pad.active)


def test_killed_while_it_drives_the_arm_stops_and_a_policy_does_not_take_over(edge, pad):
    edge.armed()
    assert drive(edge, pad, lambda: pad.active and edge.verdicts[-1].source == 'teleop')
    process = edge.processes[-1]
    process.kill()
    process.wait(10)
    assert edge.run(3.0, lambda: not np.any(edge.verdicts[-1].sent_velocity))
    sender = edge.sender()
    assert not edge.run(3.0, lambda: edge.verdicts[-1].source == 'policy')
    sender.kill()


def test_a_keyboard_without_a_terminal_is_refused_with_the_way_out(edge):
    node = [sys.executable, '-m', 'chunkpilot_nodes.teleop_node']
    done = subprocess.run(
        [*node, '--ros-args', '-p', 'source:=keyboard'],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env=edge.environment,
    )
    assert done.returncode == 1
    assert 'chunkpilot teleop keyboard' in done.stderr


def test_a_leader_arm_of_other_joints_is_refused_and_told(edge):
    process = edge.start('teleop_node', 'source:=leader')
    out = edge.node.create_publisher(JointState, 'leader/joint_states', qos.SENSOR)
    msg = JointState(name=['a', 'b'], position=[0.0, 0.0])

    def told() -> bool:
        out.publish(msg)
        return False

    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    reader.start()
    edge.run(60.0, lambda: told() or any('unknown joints' in line for line in lines))
    process.kill()
    assert any('unknown joints' in line for line in lines)
