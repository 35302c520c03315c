"""fault_injector_node as a real process: what it does to topics, and whom it kills."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import GuardState  # noqa: E402
from chunkpilot_nodes import qos  # noqa: E402
from diagnostic_msgs.msg import DiagnosticStatus  # noqa: E402
import numpy as np  # noqa: E402
from rcl_interfaces.msg import Log  # noqa: E402
from sensor_msgs.msg import JointState  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]


class Relayed:
    """Publishes numbered joint states on one side of an injector and listens on the other."""

    def __init__(self, edge: Any) -> None:
        self.edge, self.sent = edge, 0
        self.heard: list[Any] = []
        self.publisher = edge.node.create_publisher(
            JointState, 'clean/joint_states', qos.RELIABLE_10
        )
        self.guard = edge.node.create_publisher(GuardState, 'guard/state', qos.LATCHED)
        self.subscription = edge.node.create_subscription(
            JointState, 'joint_states', self._on_message, qos.RELIABLE_10
        )

    def _on_message(self, msg: Any) -> None:
        if msg.name == ['number']:  # the edge's own robot speaks here, too
            self.heard.append(msg)

    def matched(self) -> bool:
        """Whether the injector hears and is heard."""
        publishers = self.edge.node.get_publishers_info_by_topic('joint_states')
        there = any(info.node_name == 'fault_injector_node' for info in publishers)
        return there and self.publisher.get_subscription_count() > 0

    def send(self) -> None:
        self.sent += 1
        now = self.edge.node.get_clock().now().to_msg()
        msg = JointState(name=['number'], position=[float(self.sent)])
        msg.header.stamp = now
        self.publisher.publish(msg)
        self.edge.run(0.005)

    def numbers(self) -> list[float]:
        return [msg.position[0] for msg in self.heard]


@pytest.fixture
def relayed(edge: Any) -> Any:
    relayed = Relayed(edge)
    yield relayed
    for process in edge.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(10)
    edge.processes.clear()
    edge.node.destroy_publisher(relayed.publisher)
    edge.node.destroy_publisher(relayed.guard)
    edge.node.destroy_subscription(relayed.subscription)


def start(edge: Any, tmp_path: Path, text: str, *more: str) -> Any:
    file = tmp_path / 'faults.yaml'
    file.write_text(text)
    return edge.start('fault_injector_node', f'file:={file}', 'relays:=[joint_states]', *more)


def test_messages_pass_until_the_guard_is_armed_and_then_have_faults(
    edge: Any, relayed: Relayed, tmp_path: Path
) -> None:
    start(
        edge,
        tmp_path,
        'topics: {joint_states: [{kind: nan, probability: 0.5}, {kind: drop, probability: 0.2}]}',
    )
    assert edge.run(20.0, relayed.matched)
    while len(relayed.heard) < 50:
        relayed.send()
    assert np.isfinite(relayed.numbers()).all()
    relayed.guard.publish(GuardState(state=GuardState.ARMED))

    def faulty() -> bool:
        relayed.send()
        return bool(np.isnan(relayed.numbers()).any())

    assert edge.run(20.0, faulty)
    relayed.heard.clear()
    sent = relayed.sent
    while relayed.sent < sent + 300:
        relayed.send()
    edge.run(0.3)
    assert 200 <= len(relayed.heard) <= 280, 'a fifth is lost'
    assert 0.3 < np.isnan(relayed.numbers()).mean() < 0.7


def test_it_tells_how_often_each_fault_took_place(
    edge: Any, relayed: Relayed, tmp_path: Path
) -> None:
    told: list[dict[str, str]] = []
    listener = edge.node.create_subscription(
        DiagnosticStatus,
        'faults',
        lambda msg: told.append({entry.key: entry.value for entry in msg.values}),
        qos.LATCHED,
    )
    text = (
        'topics: {joint_states: [{kind: drop, probability: 0.5}, {kind: nan, start_s: 500.0}]}\n'
        'processes: [{kind: kill, node: guard_node, at_s: 900.0}]'
    )
    start(edge, tmp_path, text, 'process_faults:=true')
    assert edge.run(20.0, lambda: relayed.matched() and bool(told))
    assert set(told[-1].values()) == {'0'}, 'the plan is told before anything took place'
    relayed.guard.publish(GuardState(state=GuardState.ARMED))
    while told[-1]['joint_states: drop'] == '0':
        relayed.send()
    sent = relayed.sent
    while relayed.sent < sent + 100:
        relayed.send()
    edge.run(0.5)
    # Those that DDS loses on a busy machine are no fault of the plan.
    assert 30 < int(told[-1]['joint_states: drop']) <= relayed.sent - len(relayed.heard)
    assert told[-1]['joint_states: nan from 500 s'] == '0'
    assert told[-1]['guard_node: kill at 900 s'] == '0'
    edge.node.destroy_subscription(listener)


def test_delayed_messages_come_late_and_in_order(
    edge: Any, relayed: Relayed, tmp_path: Path
) -> None:
    text = 'begin: start\ntopics: {joint_states: [{kind: delay, delay_s: 0.3}]}'
    start(edge, tmp_path, text)
    assert edge.run(20.0, relayed.matched)
    ages: list[float] = []
    relayed.send()
    while len(ages) < 30:
        relayed.send()
        now_ns = edge.node.get_clock().now().nanoseconds
        for msg in relayed.heard[len(ages) :]:
            ages.append(now_ns * 1e-9 - msg.header.stamp.sec - msg.header.stamp.nanosec * 1e-9)
    assert min(ages) >= 0.3
    assert relayed.numbers() == sorted(relayed.numbers())


def test_a_fault_that_does_not_fit_ends_the_injector(
    edge: Any, relayed: Relayed, tmp_path: Path
) -> None:
    text = 'begin: start\ntopics: {joint_states: [{kind: nan, index: 5}]}'
    process = start(edge, tmp_path, text)
    assert edge.run(20.0, relayed.matched)
    while process.poll() is None:
        relayed.send()
    assert process.returncode == 1
    assert 'joint_states: there is no entry 5 of 1' in process.stdout.read()


def test_nodes_of_the_same_launcher_are_stopped_and_killed(
    edge: Any, relayed: Relayed, tmp_path: Path
) -> None:
    guard = edge.start_guard()
    edge.ready()
    start(
        edge,
        tmp_path,
        'begin: start\nprocesses:\n'
        '- {kind: sigstop, node: guard_node, at_s: 1.0, for_s: 0.5}\n'
        '- {kind: kill, node: guard_node, at_s: 3.0}\n',
        'process_faults:=true',
    )
    status = Path(f'/proc/{guard.pid}/stat')
    letter = lambda: status.read_text().rpartition(')')[2].split()[0]  # noqa: E731
    assert edge.run(20.0, lambda: letter() == 'T'), 'asleep'
    assert edge.run(5.0, lambda: letter() != 'T'), 'awake again'
    assert edge.run(10.0, lambda: guard.poll() is not None)
    assert guard.returncode == -signal.SIGKILL


def test_whoever_sleeps_is_woken_when_the_injector_ends(
    edge: Any, relayed: Relayed, tmp_path: Path
) -> None:
    guard = edge.start_guard()
    edge.ready()
    text = (
        'begin: start\nprocesses: [{kind: sigstop, node: guard_node, at_s: 0.5, for_s: 600.0}]\n'
    )
    injector = start(edge, tmp_path, text, 'process_faults:=true')
    status = Path(f'/proc/{guard.pid}/stat')
    letter = lambda: status.read_text().rpartition(')')[2].split()[0]  # noqa: E731
    assert edge.run(20.0, lambda: letter() == 'T')
    injector.send_signal(signal.SIGINT)
    assert injector.wait(10) == 0
    assert edge.run(5.0, lambda: letter() != 'T')


@pytest.mark.parametrize(
    ('text', 'arguments', 'words'),
    [
        ('topics: {chunk: [{kind: nann}]}', [], "Did you mean 'nan'"),
        ('topics: {camera: [{kind: nan}]}', [], "unknown relayed topic 'camera'"),
        ('processes: [{kind: kill, node: guard_node}]', [], 'process_faults:=true'),
        (
            'processes: [{kind: kill, node: nobody}]\nbegin: start',
            ['process_faults:=true'],
            "node 'nobody', expected one",
        ),
    ],
)
def test_what_is_not_possible_is_told(
    tmp_path: Path, text: str, arguments: list[str], words: str
) -> None:
    file = tmp_path / 'faults.yaml'
    file.write_text(text)
    command = [sys.executable, '-m', 'chunkpilot_nodes.fault_injector_node', '--ros-args']
    for argument in (f'file:={file}', *arguments):
        command += ['-p', argument]
    began = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, 'ROS_DOMAIN_ID': '232', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'},
    )
    assert done.returncode == 1, time.monotonic() - began
    assert words in done.stdout + done.stderr
    assert 'Traceback' not in done.stderr


def test_faults_on_a_topic_that_nobody_publishes_are_told_of(edge: Any, tmp_path: Path) -> None:
    file = tmp_path / 'faults.yaml'
    file.write_text('begin: start\ntopics: {joint_state: [{kind: nan}]}')
    told: list[str] = []

    def on_log(msg: Log) -> None:
        if 'nobody publishes' in msg.msg:
            told.append(msg.msg)

    other = edge.node.create_publisher(JointState, 'clean/joint_states', qos.RELIABLE_10)
    listener = edge.node.create_subscription(Log, '/rosout', on_log, qos.EVENTS)
    process = edge.start('fault_injector_node', f'file:={file}', 'relays:=[joint_state]')
    assert edge.run(40.0, lambda: told)
    edge.run(1.0)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    edge.processes.remove(process)
    edge.node.destroy_publisher(other)
    edge.node.destroy_subscription(listener)
    assert len(told) == 1
    assert "'/clean/joint_state'" in told[0]
    assert "Did you mean '/clean/joint_states'?" in told[0]
