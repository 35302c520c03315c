"""The robot side of a graph: a robot, a driver, and processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import os
import signal
import subprocess
import sys
import time
from typing import Any

from chunkpilot_core import robot as robots

ROBOT = robots.load('panda')
SENDER = """
import signal, sys, time
import numpy as np, rclpy
from chunkpilot.msg import Command, GuardState
from chunkpilot_core import robot as robots, types
from chunkpilot_nodes import convert, qos
rclpy.init(args=sys.argv)
node = rclpy.create_node('sender')
robot, epoch = robots.load('panda'), 0
out = node.create_publisher(Command, 'command', qos.COMMAND)
def on_state(msg):
    global epoch
    epoch = int(msg.arm_epoch)
node.create_subscription(GuardState, 'guard/state', on_state, qos.LATCHED)
session, speed = int(sys.argv[1]), float(sys.argv[2])
seq, began, due = 0, None, time.monotonic()
while True:
    rclpy.spin_once(node, timeout_sec=0.0)
    due = max(due + 0.01, time.monotonic() - 0.05)
    time.sleep(max(0.0, due - time.monotonic()))
    now = node.get_clock().now().nanoseconds
    began = began or now
    target = np.array(robot.home)
    target[0] = 0.3 * np.sin(speed / 0.3 * (now - began) * 1e-9)
    group = types.CommandGroup('arm', types.Kind.JOINT_POSITION, target, np.zeros(0),
                               names=robot.arm_joints)
    if not epoch:
        continue
    seq += 1
    out.publish(convert.command_to_msg(types.Command(
        types.Id(session, seq), now, epoch, (group,), tick_steady_ns=time.monotonic_ns())))
"""


PATIENT = (  # a loaded machine delays the states of this test more than a robot would
    'ramp_s:=0.3',
    'joint_state.hold_s:=0.6',
    'joint_state.stop_s:=5.0',
    'ladder_count:=100',
)


class Edge:
    """The robot side of a graph: joint states that follow the commands, a driver, a listener."""

    def __init__(self, domain: int, prefix: str = '') -> None:
        """
        Join a domain.

        :param prefix: of the topics ``joint_states`` and ``command``, which somebody relays
        """
        import rclpy
        from rclpy.executors import SingleThreadedExecutor

        self.environment = {
            **os.environ,
            'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
            'ROS_PYTHON_CHECK_FIELDS': '1',
        }
        self.processes: list[subprocess.Popen[str]] = []
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('edge', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.prefix = prefix
        self._connect()

    def _connect(self) -> None:
        from chunkpilot.msg import Command, EStop, GuardEvent, GuardState, SafetyVerdict
        from chunkpilot_nodes import qos
        import numpy as np
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Float64, Float64MultiArray
        from std_srvs.srv import Trigger

        self.positions = np.array([*ROBOT.home, 0.04, 0.04])
        self.velocities = np.zeros(9)
        self.arm: list[tuple[float, Any]] = []  # steady time and message
        self.gripper: list[Any] = []
        self.verdicts: list[Any] = []
        self.states: list[Any] = []
        self.guard_events: list[Any] = []
        self.scales: list[float] = []
        self.calls: list[tuple[float, str]] = []
        self.stopped = False
        create, subscribe = self.node.create_publisher, self.node.create_subscription
        self.joints = create(JointState, f'{self.prefix}joint_states', qos.RELIABLE_10)
        self.commands = create(Command, 'command', qos.COMMAND)
        self.estop = create(EStop, 'estop', qos.LATCHED)
        subscribe(Float64MultiArray, 'arm_controller/commands', self._on_arm, qos.COMMAND)
        subscribe(
            Float64MultiArray, 'gripper_controller/commands', self.gripper.append, qos.COMMAND
        )
        subscribe(SafetyVerdict, 'verdict', self.verdicts.append, qos.VERDICT)
        subscribe(GuardState, 'guard/state', self.states.append, qos.LATCHED)
        subscribe(GuardEvent, 'guard/events', self.guard_events.append, qos.EVENTS)
        subscribe(
            Float64, 'guard/speed_scale', lambda msg: self.scales.append(msg.data), qos.LATCHED
        )
        for name in ('stop', 'clear'):
            self.node.create_service(Trigger, f'driver/{name}', self._driver(name))
        self.node.create_timer(0.01, self._measure)

    def _driver(self, name: str) -> Callable[[Any, Any], Any]:
        def answer(request: Any, response: Any) -> Any:
            self.calls.append((time.monotonic(), name))
            self.stopped = name == 'stop'
            response.success = True
            return response

        return answer

    def _on_arm(self, msg: Any) -> None:
        self.arm.append((time.monotonic(), msg))
        if not self.stopped:
            before = self.positions[:7].copy()
            self.positions[:7] = msg.data
            self.velocities[:7] = (self.positions[:7] - before) / 0.01

    def _measure(self) -> None:
        from chunkpilot_core.types import JointState
        from chunkpilot_nodes import convert

        if not self.arm or time.monotonic() - self.arm[-1][0] > 0.05:
            self.velocities[:] = 0.0
        now_ns = self.node.get_clock().now().nanoseconds
        state = JointState(now_ns, ROBOT.joints, self.positions, self.velocities)
        self.joints.publish(convert.joint_state_to_msg(state))

    def start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a node as a process."""
        words = [word for argument in arguments for word in ('-p', argument)]
        command = [sys.executable, '-m', f'chunkpilot_nodes.{module}', '--ros-args', *words]
        return self._run(command)

    def start_guard(self) -> subprocess.Popen[str]:
        """Start a guard that bears with this machine."""
        return self.start('guard_node', *PATIENT)

    def sender(self, session: int = 5, speed: float = 0.3) -> subprocess.Popen[str]:
        """Start a process that moves joint 1 to and fro."""
        remap = ['--ros-args', '-r', f'command:={self.prefix}command']
        return self._run([sys.executable, '-c', SENDER, str(session), str(speed), *remap])

    def _run(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        self.processes.append(process)
        return process

    def run(self, duration_s: float, until: Callable[[], Any] = lambda: False) -> bool:
        """Let time pass; return whether ``until`` came true."""
        end = time.monotonic() + duration_s
        while time.monotonic() < end and not until():
            self.executor.spin_once(timeout_sec=0.005)
        return bool(until())

    def call(self, name: str, request_type: Any, **fields: Any) -> Any:
        """Call a service and return its answer."""
        client = self.node.create_client(request_type, name)
        assert self.run(10.0, client.service_is_ready), f'{name} is not there'
        future = client.call_async(request_type.Request(**fields))
        assert self.run(10.0, future.done), f'{name} does not answer'
        self.node.destroy_client(client)
        return future.result()

    def guard(self, name: str) -> Any:
        """Call one of the guard's plain services."""
        from chunkpilot.srv import GuardCommand

        return self.call(f'guard/{name}', GuardCommand, source='test')

    @property
    def state(self) -> Any:
        """Newest state of the guard, None before the first."""
        from chunkpilot_core.types import ArmState

        return ArmState(self.states[-1].state) if self.states else None

    def ready(self) -> None:
        """Wait until the guard may be armed."""
        assert self.run(20.0, lambda: self.states and self.states[-1].can_arm), (
            self.states[-1].why_not if self.states else 'no guard'
        )

    def armed(self) -> None:
        """Arm, whatever the state is."""
        if self.state is not None and self.state.name in ('STOPPED', 'ESTOP'):
            assert self.run(5.0, lambda: self.states[-1].can_reset), self.states[-1].why_not
            assert self.guard('reset').success
        self.guard('disarm')
        until = time.monotonic() + 10.0
        answer = self.guard('arm')
        while not answer.success and time.monotonic() < until:  # it has to come to rest
            self.run(0.1)
            answer = self.guard('arm')
        assert answer.success, answer.message
        assert self.run(5.0, lambda: self.state.name == 'ARMED')

    def moving(self) -> bool:
        """Whether the newest verdict is one of motion."""
        return bool(self.verdicts) and abs(self.verdicts[-1].sent_velocity[0]) > 0.02

    def close(self) -> None:
        """End every process that was started, by its id, and the node."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)
        self.executor.shutdown()
        self.node.destroy_node()
        import rclpy

        rclpy.shutdown(context=self.context)


@contextmanager
def own_edge(prefix: str = '') -> Iterator[Edge]:
    """Give a domain of its own with a robot in it."""
    import domain_coordinator

    with domain_coordinator.domain_id() as domain:
        edge = Edge(domain, prefix)
        try:
            yield edge
        finally:
            edge.close()
