"""
The simulated robot, with the interface of a real one.

Topics in: the robot's output topics (``arm_controller/commands``,
``gripper_controller/commands``), ``guard/state``. Out: ``joint_states``, ``/clock``,
``sim/scene``, ``driver/stopped``. Services: ``sim/reset``, ``driver/stop`` (freeze the arm and
ignore commands), ``driver/clear``. Physics is in :class:`chunkpilot_core.sim.world.World`; cameras
are processes of their own.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
import math
import secrets
import time
from typing import Any

from chunkpilot.msg import GuardState, SimScene
from chunkpilot.srv import SimReset
from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError, ConfigError
from chunkpilot_core.robot import Output
from chunkpilot_core.sim.disturbance import DisturbanceConfig
from chunkpilot_core.sim.driver import Driver
from chunkpilot_core.sim.pacer import Pacer
from chunkpilot_core.sim.world import CONTROL_DT_S, World
from chunkpilot_core.types import ArmState, NS_PER_S, seconds
from chunkpilot_nodes import convert, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from rclpy.clock import Clock, ClockType
from rosgraph_msgs.msg import Clock as ClockMsg
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray
from std_srvs.srv import Trigger

FLOAT_ARRAY = 'std_msgs/msg/Float64MultiArray'
GUARD_SILENT_S = 3.0
"""[s] The guard repeats its state at 1 Hz; older than this, it is not there."""


@dataclass(frozen=True)
class Config:
    """What is simulated, and how fast."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    task: str = option('pick_and_place', 'task at the start')
    seed: int = option(0, 'seed of the first episode', min=0)
    real_time_factor: float = option(
        1.0, 'simulated seconds per second; not 1: set use_sim_time everywhere', min=0.01, max=20
    )


class SimNode(spin.SupervisedNode):
    """Steps a :class:`World` in real time."""

    def __init__(self) -> None:
        super().__init__('sim_node')
        self._config = params.declare(self, Config)
        errors = params.declare(self, World.Config)
        disturbance = params.declare(self, DisturbanceConfig, 'disturbance.')
        self._tasks = {
            name: registry.get('tasks', name)(
                params.declare(self, registry.get('tasks', name).Config, f'{name}.')
            )
            for name in registry.names('tasks')
        }
        self._robot = robots.load(self._config.robot)
        definition = self._definition(self._config.task)
        self._world = World(definition, self._robot, errors, disturbance)
        self._world.reset(self._config.seed)
        self._session = secrets.randbits(64)
        self._driver = Driver(self._world)
        self._guard: tuple[ArmState, int] = (ArmState.DISARMED, 0)
        self._latency_s = math.nan
        self._latencies: deque[float] = deque(maxlen=500)
        self._costs: deque[float] = deque(maxlen=500)
        # The simulated clock starts at the wall clock, so that a respawned sim does not go back.
        self._clock_base_ns = time.time_ns()
        self._own_time = (
            self.get_parameter('use_sim_time').value or self._config.real_time_factor != 1.0
        )
        self._connect()
        self._pacer = Pacer(CONTROL_DT_S / self._config.real_time_factor, time.monotonic())
        self.create_timer(
            max(CONTROL_DT_S / self._config.real_time_factor, 0.002),
            self._on_timer,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        self.get_logger().info(
            f'robot {self._robot.name}, task {self._config.task}, seed {self._config.seed}, '
            f'real-time factor {self._config.real_time_factor:g}, {errors}, '
            f'disturbance {disturbance.kind}'
        )

    def _connect(self) -> None:
        self._joints_out = self.create_publisher(JointState, 'joint_states', qos.RELIABLE_10)
        self._clock_out = self.create_publisher(ClockMsg, '/clock', qos.RELIABLE_10)
        self._scene_out = self.create_publisher(SimScene, 'sim/scene', qos.RELIABLE_10)
        self._stopped_out = self.create_publisher(Bool, 'driver/stopped', qos.LATCHED)
        self._stopped_out.publish(Bool(data=False))
        for output in self._robot.outputs:
            self._subscribe(output)
        self.create_subscription(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        self.create_service(SimReset, 'sim/reset', self._on_reset)
        self.create_service(Trigger, 'driver/stop', self._on_stop)
        self.create_service(Trigger, 'driver/clear', self._on_clear)

    def _subscribe(self, output: Output) -> None:
        if output.type != FLOAT_ARRAY:
            raise ConfigError(
                f'output {output.topic} is {output.type}, the sim takes {FLOAT_ARRAY} only'
            )
        self.create_subscription(
            Float64MultiArray,
            output.topic,
            lambda msg: self._on_command(output, msg),
            qos.COMMAND,
        )

    def _definition(self, kind: str) -> Any:
        if kind not in self._tasks:
            registry.get('tasks', kind)  # raises with the known names
        return self._tasks[kind]

    def _on_command(self, output: Output, msg: Float64MultiArray) -> None:
        received_ns = time.monotonic_ns()
        try:
            self._driver.take(output.topic, output.joints, msg.data)
        except ChunkpilotError as error:
            self.get_logger().error(f'command refused: {error}', throttle_duration_sec=1.0)
            return
        tick_ns = convert.tick_of(msg)
        if tick_ns:
            self._latency_s = seconds(received_ns - tick_ns)
            self._latencies.append(self._latency_s)

    def _on_timer(self) -> None:
        for _ in range(self._pacer.due(time.monotonic())):
            started = time.perf_counter()
            self._step()
            self._costs.append(time.perf_counter() - started)

    def _step(self) -> None:
        self._driver.apply()
        self._world.step()
        clock_ns = self._clock_base_ns + self._world.time_ns
        stamp = convert.to_time(clock_ns if self._own_time else self.now_ns())
        self._clock_out.publish(ClockMsg(clock=convert.to_time(clock_ns)))
        state = convert.joint_state_to_msg(self._world.joint_state())
        state.header.stamp = stamp
        self._joints_out.publish(state)
        self._publish_scene(stamp)

    def _publish_scene(self, stamp: Any) -> None:
        msg = convert.scene_to_msg(self._world.scene(), self._robot.world_frame)
        msg.header.stamp = stamp
        msg.session, msg.step = self._session, self._world.steps
        msg.resets, msg.commands = self._world.resets, self._driver.commands
        msg.command_latency_s = float(self._latency_s)
        msg.real_time_factor = float(self._pacer.rate_hz * CONTROL_DT_S)
        msg.overrun_s = float(self._pacer.lag_s)
        self._scene_out.publish(msg)

    def _on_guard(self, msg: GuardState) -> None:
        self._guard = (convert.member(ArmState, msg.state), time.monotonic_ns())

    def _armed(self) -> bool:
        state, since_ns = self._guard
        alive = time.monotonic_ns() - since_ns < GUARD_SILENT_S * NS_PER_S
        return alive and state in (ArmState.ARMED, ArmState.HOLD)

    def _on_reset(self, request: SimReset.Request, response: SimReset.Response) -> Any:
        kind = request.task_kind or self._world.definition.kind
        try:
            if self._armed():
                raise ChunkpilotError(
                    f'refused: the guard is {self._guard[0].name}, call guard/disarm first'
                )
            definition = self._definition(kind)
            if kind != self._world.definition.kind:
                self._world.set_task(definition)
            task = self._world.reset(request.seed, request.reset_robot)
        except ChunkpilotError as error:
            response.message = f'sim/reset: {error}'
            self.get_logger().warning(response.message)
            return response
        self._driver.reset()
        now_ns = self._clock_base_ns + self._world.time_ns if self._own_time else self.now_ns()
        response.success = True
        response.message = f'{kind}, seed {request.seed}'
        response.task = convert.task_to_msg(task, now_ns, self._robot.world_frame)
        return response

    def _on_stop(self, request: Trigger.Request, response: Trigger.Response) -> Any:
        self._driver.stop()
        self._stopped_out.publish(Bool(data=True))
        self.get_logger().warning('driver stopped: the arm is held, commands are refused')
        response.success, response.message = True, 'stopped; driver/clear lets commands in again'
        return response

    def _on_clear(self, request: Trigger.Request, response: Trigger.Response) -> Any:
        self._driver.clear()
        self._stopped_out.publish(Bool(data=False))
        response.success, response.message = True, 'the arm is held until the next command'
        return response

    def on_fault(self, error: Exception) -> None:
        """Hold the arm."""
        self._driver.hold()

    def shutdown(self) -> None:
        """Free the physics client."""
        self._world.close()

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return rates, lag, latencies, and what was refused."""
        pacer = self._pacer
        factor = pacer.rate_hz * CONTROL_DT_S
        numbers: dict[str, object] = {
            'task': self._world.definition.kind,
            'real_time_factor': round(factor, 3),
            'lag_ms': round(pacer.lag_s * 1e3, 1),
            'slipped_s': round(pacer.slipped_s, 3),
            'step_ms_p50': _quantile(self._costs, 50),
            'step_ms_p99': _quantile(self._costs, 99),
            'command_latency_ms_p50': _quantile(self._latencies, 50),
            'command_latency_ms_p99': _quantile(self._latencies, 99),
            'commands': self._driver.commands,
            'refused': self._driver.refused,
            'last_refusal': self._driver.last_refusal,
            'driver_stopped': self._driver.stopped,
        }
        if self._driver.stopped:
            return DiagnosticStatus.WARN, 'driver stopped', numbers
        if factor < 0.95 * self._config.real_time_factor:
            return DiagnosticStatus.WARN, f'too slow: real-time factor {factor:.2f}', numbers
        return DiagnosticStatus.OK, 'simulating', numbers


def _quantile(values: deque[float], percent: float) -> float:
    return round(float(np.percentile(np.array(values), percent)) * 1e3, 2) if values else math.nan


def main() -> None:
    """Run the node."""
    spin.main(SimNode, executor='events')


if __name__ == '__main__':
    main()
