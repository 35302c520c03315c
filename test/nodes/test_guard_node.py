"""guard_node as a real process: what reaches the robot, and what never does."""

import math
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import EStop, SafetyVerdict  # noqa: E402
from chunkpilot.srv import MoveTo  # noqa: E402
from chunkpilot_core import robot as robots  # noqa: E402
from chunkpilot_core import types  # noqa: E402
from chunkpilot_nodes import convert  # noqa: E402
import numpy as np  # noqa: E402
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue  # noqa: E402
from rcl_interfaces.srv import SetParameters  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
ROBOT = robots.load('panda')
HOME = np.array(ROBOT.home)


@pytest.fixture(scope='module')
def graph(edge: Any) -> Any:
    """Give the edge with a guard on it."""
    edge.guard_process = edge.start_guard()
    edge.ready()
    return edge


def command(edge: Any, seq: int, positions: Any, session: int = 77) -> Any:
    now_ns = edge.node.get_clock().now().nanoseconds
    group = types.CommandGroup(
        'arm',
        types.Kind.JOINT_POSITION,
        np.asarray(positions, float),
        np.zeros(0),
        names=ROBOT.arm_joints,
    )
    epoch = int(edge.states[-1].arm_epoch)
    return convert.command_to_msg(types.Command(types.Id(session, seq), now_ns, epoch, (group,)))


def test_it_comes_up_disarmed_silent_and_alive(graph: Any) -> None:
    assert graph.state is types.ArmState.DISARMED
    graph.run(0.2)
    graph.verdicts.clear()
    graph.run(1.0)
    assert len(graph.verdicts) > 40, 'a verdict every tick'
    assert not graph.arm
    assert not graph.gripper
    assert graph.states[-1].limits_hash == ROBOT.limits_hash
    assert abs(graph.states[-1].arm_epoch - time.time_ns()) < 600e9


def test_commands_reach_the_robot_with_the_tick_they_came_from(graph: Any) -> None:
    graph.armed()
    assert graph.run(5.0, lambda: graph.scales and graph.scales[-1] == 1.0)
    assert graph.scales.index(1.0) > 3, 'the speed scale ramps'
    sender = graph.sender()
    assert graph.run(20.0, graph.moving)
    graph.run(1.0)  # it starts with a jump of velocity, which the limiter rounds off
    graph.verdicts.clear()
    graph.arm.clear()
    graph.run(2.0)
    sender.kill()
    received = [(at, msg) for at, msg in graph.arm if convert.tick_of(msg)]
    assert len(received) > 100
    latencies_ms = [at * 1e3 - convert.tick_of(msg) * 1e-6 for at, msg in received]
    assert np.median(latencies_ms) < 20.0, np.percentile(latencies_ms, [50, 99])
    assert graph.arm[-1][1].layout.dim[0].size == 7
    assert len(graph.gripper[-1].data) == 2
    passed = [verdict.reaction == SafetyVerdict.PASS for verdict in graph.verdicts]
    assert np.mean(passed) > 0.8
    for verdict in graph.verdicts:
        assert sum(verdict.counters) == verdict.tick
    costs_ms = np.array([verdict.tick_cpu_s for verdict in graph.verdicts]) * 1e3
    print('tick cpu ms p50, p99:', np.percentile(costs_ms, [50, 99]).round(3))


@pytest.mark.matrix(18)
def test_it_holds_when_the_sender_sleeps_and_goes_on_after(graph: Any) -> None:
    graph.armed()
    sender = graph.sender(session=6)
    assert graph.run(20.0, graph.moving)
    epoch = graph.states[-1].arm_epoch
    sender.send_signal(signal.SIGSTOP)
    slept = time.monotonic()
    assert graph.run(2.0, lambda: graph.state is types.ArmState.HOLD)
    assert time.monotonic() - slept < 0.45, 'silence of 0.2 s, and what this machine adds'
    assert 'no acceptable command' in graph.states[-1].causes[0]
    graph.run(0.2)
    graph.arm.clear()
    graph.run(0.2)
    assert len(graph.arm) > 5, 'it keeps sending'
    assert len({tuple(msg.data) for _, msg in graph.arm}) == 1, 'the same setpoint'
    assert graph.run(3.0, lambda: graph.state is types.ArmState.ARMED)
    assert graph.states[-1].arm_epoch == epoch + 1
    sender.send_signal(signal.SIGCONT)
    assert graph.run(5.0, graph.moving), 'the same sender goes on, in the new epoch'
    sender.kill()
    assert graph.run(3.0, lambda: graph.state is types.ArmState.HOLD)


def test_a_restarted_sender_waits_until_the_arm_is_armed_again(graph: Any) -> None:
    graph.armed()
    first = graph.sender(session=8)
    assert graph.run(20.0, graph.moving)
    first.kill()
    assert graph.run(3.0, lambda: graph.state is types.ArmState.HOLD)
    assert graph.run(3.0, lambda: graph.state is types.ArmState.ARMED)
    second = graph.sender(session=9)
    refused = lambda: any('arm again' in event.reason for event in graph.guard_events)  # noqa: E731
    assert graph.run(20.0, refused)
    assert not graph.moving()
    graph.armed()
    assert graph.run(5.0, graph.moving)
    second.kill()


@pytest.mark.matrix(1)
def test_nan_is_refused_by_name_and_the_node_lives(graph: Any) -> None:
    graph.armed()
    graph.run(0.5)
    graph.guard_events.clear()
    where = graph.positions.copy()
    graph.verdicts.clear()
    broken = graph.positions[:7].copy()
    broken[2] = math.nan
    graph.commands.publish(command(graph, 2, broken))
    refused = lambda: any(  # noqa: E731
        verdict.reaction == SafetyVerdict.REJECT_CHUNK for verdict in graph.verdicts
    )
    assert graph.run(2.0, refused)
    events = lambda: [event for event in graph.guard_events if event.kind == 'rejection']  # noqa: E731
    assert graph.run(2.0, events)
    event = events()[0]
    assert event.joint == 'panda_joint3'
    assert math.isnan(event.value)
    unreadable = command(graph, 3, HOME)
    unreadable.groups[0].kind = 'telepathy'
    graph.verdicts.clear()
    graph.commands.publish(unreadable)
    assert graph.run(2.0, refused)
    assert any('telepathy' in verdict.reason for verdict in graph.verdicts)
    assert np.allclose(graph.positions, where)
    assert graph.guard_process.poll() is None


def test_an_emergency_stop_latches_and_a_reset_never_arms(graph: Any) -> None:
    graph.armed()
    sender = graph.sender(session=10)
    assert graph.run(20.0, graph.moving)
    graph.calls.clear()
    graph.estop.publish(EStop(asserted=True, source='button', reason='test'))
    pressed = time.monotonic()
    assert graph.run(2.0, lambda: graph.state is types.ArmState.ESTOP)
    assert time.monotonic() - pressed < 0.2
    assert graph.run(2.0, lambda: any(name == 'stop' for _, name in graph.calls))
    refused = graph.guard('reset')
    assert not refused.success
    assert 'button' in refused.message
    graph.estop.publish(EStop(asserted=False, source='button'))
    graph.run(0.8)
    assert graph.state is types.ArmState.ESTOP, 'letting go does not clear it'
    assert graph.guard('reset').success
    assert graph.run(2.0, lambda: graph.state is types.ArmState.DISARMED)
    assert graph.run(2.0, lambda: any(name == 'clear' for _, name in graph.calls))
    graph.run(0.1)
    graph.arm.clear()
    graph.run(1.5)
    assert not graph.arm, 'commands come, nothing is sent'
    sender.kill()


def test_move_to_goes_home_and_says_so(graph: Any) -> None:
    graph.armed()
    goal = HOME + 0.1
    names = list(ROBOT.arm_joints)
    answer = graph.call(
        'guard/move_to',
        MoveTo,
        joint_names=names[::-1],
        positions=goal[::-1].tolist(),
        speed_fraction=0.5,
    )
    assert answer.success, answer.message
    assert graph.run(5.0, lambda: graph.states[-1].at_target and not graph.states[-1].moving)
    assert np.allclose(graph.positions[:7], goal)
    wrong = graph.call('guard/move_to', MoveTo, joint_names=names[:2], positions=[0.0, 0.0])
    assert not wrong.success
    assert 'panda_joint7' in wrong.message
    assert graph.call('guard/move_to', MoveTo).success
    assert graph.run(5.0, lambda: np.allclose(graph.positions[:7], HOME))


@pytest.mark.matrix(49)
def test_limits_and_timings_cannot_be_changed_while_it_runs(graph: Any) -> None:
    value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=5.0)
    request = [Parameter(name='staleness.command_s', value=value)]
    answer = graph.call('guard_node/set_parameters', SetParameters, parameters=request)
    assert not answer.results[0].successful
    assert answer.results[0].reason


@pytest.mark.matrix(49)
def test_limits_are_tightened_smoothly_and_never_loosened(graph: Any) -> None:
    def set_to(name: str, number: float) -> Any:
        value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=number)
        request = [Parameter(name=name, value=value)]
        return graph.call('guard_node/set_parameters', SetParameters, parameters=request).results[
            0
        ]

    graph.armed()
    assert graph.run(5.0, lambda: graph.scales and graph.scales[-1] == 1.0)
    graph.scales.clear()
    assert set_to('limits.velocity_fraction', 0.9).successful
    sender = graph.sender(session=12)
    assert graph.run(10.0, lambda: graph.scales and graph.scales[-1] == 0.9)
    sender.kill()
    refused = set_to('limits.velocity_fraction', 1.0)
    assert not refused.successful
    assert 'loosened by a restart only' in refused.reason
    assert set_to('limits.tool_speed', 0.9).successful
    assert not set_to('limits.tool_speed', 0.95).successful
    nothing = set_to('limits.tool_speed', float('nan'))
    assert not nothing.successful
    asked = [event for event in graph.guard_events if event.check == 'tighten']
    assert [bool(event.limit) for event in asked] == [True, False, True, False]


@pytest.mark.matrix(51)
def test_sigint_in_motion_decelerates_and_ends_cleanly(graph: Any) -> None:
    graph.armed()
    sender = graph.sender(session=11)
    assert graph.run(20.0, graph.moving)
    graph.verdicts.clear()
    graph.guard_process.send_signal(signal.SIGINT)
    assert graph.run(5.0, lambda: graph.guard_process.poll() is not None)
    graph.run(0.2)
    assert graph.guard_process.returncode == 0
    output = graph.guard_process.stdout.read()
    assert 'Traceback' not in output, output
    assert graph.state is types.ArmState.DISARMED
    assert not np.any(graph.verdicts[-1].sent_velocity)
    speeds = np.abs([verdict.sent_velocity[0] for verdict in graph.verdicts])
    assert np.abs(np.diff(speeds)).max(initial=0.0) <= 15.0 * 0.031, 'no jump on the way to rest'
    sender.kill()


@pytest.mark.parametrize(
    ('argument', 'words'),
    [
        ('staleness.comand_s:=0.3', 'Did you mean'),
        ('staleness.command_s:=99.0', 'maximum'),
        ('robot:=pandas', 'Did you mean'),
    ],
)
def test_a_wrong_parameter_ends_the_node_with_one_clear_line(
    edge: Any, argument: str, words: str
) -> None:
    process = subprocess.run(
        [sys.executable, '-m', 'chunkpilot_nodes.guard_node', '--ros-args', '-p', argument],
        capture_output=True,
        text=True,
        timeout=60,
        env={**edge.environment, 'ROS_DOMAIN_ID': '231'},
    )
    assert process.returncode == 1
    assert words in process.stderr
    assert 'Traceback' not in process.stderr
