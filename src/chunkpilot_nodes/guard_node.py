"""
The only node that sends anything to the robot.

Topics in: ``command``, ``joint_states``, ``estop``, ``observation`` (health), ``policy/info``
(action space), ``episode``. Out: the robot's output topics, ``verdict``, ``guard/state``,
``guard/speed_scale``, ``guard/events``, ``executed_rows``. Services: ``guard/arm``, ``disarm``,
``hold``, ``resume``, ``stop``, ``reset``, ``move_to``. It ticks when a command arrives; a timer
runs the same tick when none comes. All the thinking is in
:class:`chunkpilot_core.safety.runtime.guard.Guard`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
import secrets
import time
from typing import Any

from chunkpilot.msg import Command as CommandMsg
from chunkpilot.msg import (
    EpisodeEvent,
    EStop,
    ExecutedRows,
    GuardState,
    Observation,
    PolicyInfo,
    SafetyVerdict,
)
from chunkpilot.msg import GuardEvent as GuardEventMsg
from chunkpilot.srv import GuardCommand, MoveTo
from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.safety.runtime.checks import MANDATORY
from chunkpilot_core.safety.runtime.guard import Guard, GuardTick
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.types import ArmState, F64, GuardEvent, nanoseconds, seconds
from chunkpilot_nodes import convert, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray
from std_srvs.srv import Trigger

FLOAT_ARRAY = 'std_msgs/msg/Float64MultiArray'
LATE = 1.2  # periods without a command, after which the timer ticks
SHUTDOWN_S = 1.0  # to decelerate in


@dataclass(frozen=True)
class Config:
    """Which robot is guarded, and by what beside the mandatory checks."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    extra_checks: tuple[str, ...] = option((), 'further plug-ins of the family safety')
    relay_estop: bool = option(
        True, 'call driver/stop when the arm rests in ESTOP, driver/clear after the reset'
    )


class GuardNode(spin.SupervisedNode):
    """Thin adapter around :class:`Guard`."""

    def __init__(self) -> None:
        super().__init__('guard_node')
        self._config = params.declare(self, Config)
        guard, machine = params.declare(self, Guard.Config), params.declare(self, Machine.Config)
        checks = {
            name: params.declare(self, registry.get('safety', name).Config, f'{name}.')
            for name in (*MANDATORY, *self._config.extra_checks)
        }
        self._robot = robots.load(self._config.robot)
        self._session = secrets.randbits(63) + 1
        self._guard = Guard(
            self._robot,
            guard,
            machine=machine,
            checks=checks,
            extra_checks=self._config.extra_checks,
            epoch=time.time_ns(),
            session=self._session,
        )
        self._period_ns = nanoseconds(guard.period_s)
        self._ticked_ns = 0  # ROS time of the last tick
        self._scale = -1.0
        self._relayed = False
        self._costs: deque[float] = deque(maxlen=1000)
        self._periods: deque[float] = deque(maxlen=1000)
        self._tick: GuardTick | None = None
        self._connect()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(LATE * guard.period_s, self._on_timer, clock=steady)
        self.create_timer(1.0, self._publish_state, clock=steady)
        self._run_tick(on_timer=True)
        self.get_logger().info(
            f'robot {self._robot.name}, limits {self._robot.limits_hash}, '
            f'{1.0 / guard.period_s:g} Hz, ramp {machine.ramp_s:g} s, '
            f'checks {list(checks)}, DISARMED'
        )

    def _connect(self) -> None:
        create = self.create_publisher
        self._verdicts = create(SafetyVerdict, 'verdict', qos.VERDICT)
        self._states = create(GuardState, 'guard/state', qos.LATCHED)
        self._scales = create(Float64, 'guard/speed_scale', qos.LATCHED)
        self._events = create(GuardEventMsg, 'guard/events', qos.EVENTS)
        self._rows = create(ExecutedRows, 'executed_rows', qos.ROWS)
        self._outputs = []
        for output in self._robot.outputs:
            if output.type != FLOAT_ARRAY:
                raise ConfigError(f'output {output.topic} is {output.type}, known: {FLOAT_ARRAY}')
            columns = np.array([self._robot.joints.index(joint) for joint in output.joints])
            self._outputs.append((create(Float64MultiArray, output.topic, qos.COMMAND), columns))
        subscribe = self.create_subscription
        subscribe(CommandMsg, 'command', self._on_command, qos.COMMAND)
        subscribe(JointState, 'joint_states', self._on_joint_state, qos.SENSOR)
        subscribe(EStop, 'estop', self._on_estop, qos.LATCHED)
        subscribe(Observation, 'observation', self._on_observation, qos.RELIABLE_10)
        subscribe(PolicyInfo, 'policy/info', self._on_policy, qos.LATCHED)
        subscribe(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        for name in ('arm', 'disarm', 'hold', 'resume', 'stop', 'reset'):
            self.create_service(GuardCommand, f'guard/{name}', self._answer(name))
        self.create_service(MoveTo, 'guard/move_to', self._on_move_to)
        self._driver = {
            name: self.create_client(Trigger, f'driver/{name}') for name in ('stop', 'clear')
        }

    # ---- what comes in --------------------------------------------------------------------------

    def _on_command(self, msg: CommandMsg) -> None:
        now_ns = self.now_ns()
        try:
            self._guard.on_command(convert.command_from_msg(msg), now_ns)
        except InvalidDataError as error:
            self._guard.on_unreadable(f'unreadable command: {error}', now_ns)
        # Never two ticks within half a period: the next one takes this command.
        if not 0 <= now_ns - self._ticked_ns < self._period_ns // 2:
            self._run_tick(on_timer=False)

    def _on_timer(self) -> None:
        self._run_tick(on_timer=True)

    def _on_joint_state(self, msg: JointState) -> None:
        try:
            self._guard.on_joint_state(convert.joint_state_from_msg(msg), self.now_ns())
        except InvalidDataError as error:
            self._guard.on_joint_error(str(error), self.now_ns())

    def _on_estop(self, msg: EStop) -> None:
        news = msg.asserted and self._guard.machine.state is not ArmState.ESTOP
        self._guard.on_estop(msg.asserted, msg.source or 'unnamed', self.now_ns())
        if news:
            self._run_tick(on_timer=True)

    def _on_observation(self, msg: Observation) -> None:
        self._guard.on_observation(convert.health_from_msg(msg), self.now_ns())

    def _on_policy(self, msg: PolicyInfo) -> None:
        if msg.ready:
            spec = convert.policy_info_from_msg(msg)
            self._guard.set_space(spec.space, spec.dt_s)

    def _on_episode(self, msg: EpisodeEvent) -> None:
        running = msg.event == EpisodeEvent.START
        self._guard.set_episode(running, msg.episode_id, msg.task_id)

    # ---- requests -------------------------------------------------------------------------------

    def _answer(self, name: str) -> Callable[[Any, Any], Any]:
        request_of: Callable[[int], tuple[bool, str]] = getattr(self._guard, name)

        def answer(request: GuardCommand.Request, response: GuardCommand.Response) -> Any:
            response.success, response.message = request_of(self.now_ns())
            response.arm_epoch = int(self._guard.machine.epoch)
            response.state = int(self._guard.machine.state)
            who = f' by {request.source}' if request.source else ''
            self.get_logger().info(
                f'{name}{who}: {"done" if response.success else "refused"}, {response.message}'
            )
            self._run_tick(on_timer=True)
            return response

        return answer

    def _on_move_to(self, request: MoveTo.Request, response: MoveTo.Response) -> Any:
        try:
            goal = convert.goal_from_request(request, self._robot)
        except InvalidDataError as error:
            response.message = str(error)
            return response
        response.success, response.message = self._guard.move_to(
            goal, float(request.speed_fraction), self.now_ns()
        )
        self._publish_state()
        return response

    # ---- the tick -------------------------------------------------------------------------------

    def _run_tick(self, on_timer: bool) -> None:
        self._timer.reset()
        now_ns, steady_ns = self.now_ns(), time.monotonic_ns()
        cpu_ns = time.thread_time_ns()
        tick = self._guard.tick(now_ns, steady_ns, on_timer)
        cpu_s = seconds(time.thread_time_ns() - cpu_ns)
        self._ticked_ns, self._tick = now_ns, tick
        if tick.positions is not None:
            self._send(tick.positions, tick.verdict.tick_steady_ns)
        self._costs.append(cpu_s)
        self._periods.append(tick.verdict.period_s)
        self._publish(tick, cpu_s)
        self._relay_estop(tick)

    def _send(self, positions: F64, tick_steady_ns: int) -> None:
        for publisher, columns in self._outputs:
            publisher.publish(convert.positions_to_msg(positions[columns], tick_steady_ns))

    def _publish(self, tick: GuardTick, cpu_s: float) -> None:
        verdict = convert.verdict_to_msg(tick.verdict, self._session)
        verdict.tick_cpu_s = float(cpu_s)
        self._verdicts.publish(verdict)
        if tick.status_changed:
            self._publish_state()
        if abs(tick.speed_scale - self._scale) >= 0.01 or (
            tick.speed_scale != self._scale and tick.speed_scale in (0.0, 1.0)
        ):
            self._scale = tick.speed_scale
            self._scales.publish(Float64(data=float(self._scale)))
        for event in tick.events:
            self._events.publish(convert.guard_event_to_msg(event, self._session))
            self._log(event)
        for rows in self._guard.executed():
            self._rows.publish(convert.executed_rows_to_msg(rows))

    def _publish_state(self) -> None:
        self._states.publish(convert.guard_state_to_msg(self._guard.status(), self._session))

    def _log(self, event: GuardEvent) -> None:
        if event.kind == 'transition':
            text = f'{event.from_state.name} -> {event.to_state.name}: {event.reason}'
            if event.to_state in (ArmState.ARMED, ArmState.DISARMED):
                self.get_logger().info(text)
            else:  # not from the same line: rclpy raises when a call changes its severity
                self.get_logger().warning(text)
        elif event.kind == 'rejection':
            more = f' ({event.suppressed} more before)' if event.suppressed else ''
            self.get_logger().warning(f'command refused, {event.check}: {event.reason}{more}')

    def _relay_estop(self, tick: GuardTick) -> None:
        """Let the driver stop too, once the arm rests; let it go on after the reset."""
        state = tick.verdict.state
        if not self._config.relay_estop or (state is ArmState.ESTOP) == self._relayed:
            return
        if state is ArmState.ESTOP and np.abs(tick.verdict.sent_velocity).max() > 0.0:
            return
        self._relayed = not self._relayed
        client = self._driver['stop' if self._relayed else 'clear']
        if client.service_is_ready():
            client.call_async(Trigger.Request())
        else:
            self.get_logger().warning(f'{client.srv_name} is not there')

    # ---- the node's own troubles ----------------------------------------------------------------

    def on_fault(self, error: Exception) -> None:
        """Stop: an exception in a callback is a bug, and nobody knows what it left undone."""
        self._guard.stop(self.now_ns(), f'{type(error).__name__} in guard_node: {error}')

    def shutdown(self) -> None:
        """Decelerate, fall silent, and say so."""
        self._guard.disarm(self.now_ns())
        until = time.monotonic() + SHUTDOWN_S
        while time.monotonic() < until and self._tick is not None:
            self._run_tick(on_timer=True)
            if self._guard.silent or not self._tick.verdict.sent_velocity.any():
                break
            time.sleep(seconds(self._period_ns))
        self._publish_state()
        time.sleep(0.05)  # what was published last is still on its way

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return state, counters, CPU and periods."""
        status = self._guard.status()
        counters = self._tick.verdict.counters if self._tick else ()
        numbers: dict[str, object] = {
            'state': status.state.name,
            'arm_epoch': status.arm_epoch,
            'limits_hash': status.limits_hash,
            'ticks_by_reaction': list(counters),
            'speed_scale': round(self._scale, 3),
            'tick_cpu_ms_p50': _quantile_ms(self._costs, 50),
            'tick_cpu_ms_p99': _quantile_ms(self._costs, 99),
            'period_ms_p99': _quantile_ms(self._periods, 99),
            'causes': list(status.causes),
            'why_not': status.why_not,
        }
        level = {ArmState.HOLD: DiagnosticStatus.WARN}.get(status.state, DiagnosticStatus.OK)
        if status.state in (ArmState.STOPPED, ArmState.ESTOP):
            level = DiagnosticStatus.ERROR
        return level, status.causes[-1] if status.causes else status.state.name, numbers


def _quantile_ms(values: deque[float], percent: float) -> float:
    return round(float(np.percentile(np.array(values), percent)) * 1e3, 3) if values else 0.0


def main() -> None:
    """Run the node."""
    spin.main(GuardNode, executor='events')


if __name__ == '__main__':
    main()
