"""The other side of the soak: a robot that goes where it is sent, and who sends it."""

import time

from chunkpilot.msg import Command, GuardState
from chunkpilot_core import robot as robots
from chunkpilot_core.types import ArmState, CommandGroup, Id, JointState, Kind, NS_PER_S
from chunkpilot_core.types import Command as CoreCommand
from chunkpilot_nodes import convert, qos
import numpy as np
import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState as JointStateMsg
from std_msgs.msg import Float64MultiArray

PERIOD_S = 0.01
RATE, SIZE = 1.0, 0.1  # [rad/s], [rad] of the motion: well within all limits
BEGIN_S = 2.0  # to come up to it
WAIT_S = 1.5  # the guard's ramp


class Robot(Node):
    """Measures and commands in one tick, as a robot on the same machine would."""

    def __init__(self) -> None:
        super().__init__('robot')
        self._random = np.random.default_rng(0)
        self._robot = robots.load('panda')
        self._arm = np.array(self._robot.home)
        self._fingers = np.full(len(self._robot.joints) - len(self._arm), 0.04)
        self._epoch = self._seq = 0
        self._armed_ns = 0
        self._states = self.create_publisher(JointStateMsg, 'joint_states', qos.RELIABLE_10)
        self._commands = self.create_publisher(Command, 'command', qos.COMMAND)
        subscribe = self.create_subscription
        subscribe(GuardState, 'guard/state', self._on_state, qos.LATCHED)
        arm, fingers = (output.topic for output in self._robot.outputs)
        subscribe(Float64MultiArray, arm, self._on_arm, qos.COMMAND)
        subscribe(Float64MultiArray, fingers, self._on_fingers, qos.COMMAND)
        self.create_timer(PERIOD_S, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _on_state(self, msg: GuardState) -> None:
        if msg.state != int(ArmState.ARMED):
            self._armed_ns = 0
        elif not self._armed_ns or msg.arm_epoch != self._epoch:
            self._armed_ns = self.get_clock().now().nanoseconds
        self._epoch = int(msg.arm_epoch)

    def _on_arm(self, msg: Float64MultiArray) -> None:
        self._arm = np.array(msg.data)

    def _on_fingers(self, msg: Float64MultiArray) -> None:
        self._fingers = np.array(msg.data)

    def _tick(self) -> None:
        now_ns = self.get_clock().now().nanoseconds
        positions = np.concatenate((self._arm, self._fingers))
        noise = self._random.normal(0.0, 1e-6, len(positions))  # encoders are never quite still
        state = JointState(now_ns, self._robot.joints, positions + noise, np.zeros(len(positions)))
        self._states.publish(convert.joint_state_to_msg(state))
        # By the clock of the stamps: between them the target goes exactly as far as it says.
        passed = (now_ns - self._armed_ns) / NS_PER_S - WAIT_S
        if not self._armed_ns or passed < 0.0:
            return
        self._seq += 1
        rise = 0.5 - 0.5 * np.cos(np.pi * min(passed / BEGIN_S, 1.0))
        target = np.array(self._robot.home) + SIZE * rise * np.sin(RATE * passed)
        group = CommandGroup(
            'arm', Kind.JOINT_POSITION, target, np.zeros(0), names=self._robot.arm_joints
        )
        command = CoreCommand(
            Id(1, self._seq), now_ns, self._epoch, (group,), tick_steady_ns=time.monotonic_ns()
        )
        self._commands.publish(convert.command_to_msg(command))


def main() -> None:
    """Run until a signal comes."""
    rclpy.init()
    node = Robot()
    executor = EventsExecutor()
    executor.add_node(node)
    try:
        while rclpy.ok():
            executor.spin_once(timeout_sec=0.2)
    except (KeyboardInterrupt, rclpy.executors.ExternalShutdownException):
        pass


if __name__ == '__main__':
    main()
