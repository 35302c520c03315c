"""
The only node that sends anything to the robot.

Topics in: ``command``, ``teleop/command``, ``intervention``, ``joint_states``, ``estop``,
``observation`` (health), ``obstacles``, ``chunk``, ``policy/info`` (action space), ``episode``.
Out: the robot's output topics, ``verdict``, ``guard/state``, ``guard/speed_scale``,
``guard/events``, ``guard/parameters``, ``executed_rows``. Services: ``guard/arm``, ``recover``,
``disarm``, ``hold``, ``resume``, ``stop``, ``reset``, ``move_to``, ``approve``. It ticks when a
command arrives; a timer runs the same tick when none comes. All the thinking is in
:class:`chunkpilot_core.safety.runtime.guard.Guard`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
import secrets
import time
from typing import Any

from chunkpilot.msg import ExecutedRows, GuardParameters, GuardState, SafetyVerdict
from chunkpilot.msg import GuardEvent as GuardEventMsg
from chunkpilot.srv import ApproveAction, GuardCommand, MoveTo
from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.runtime import choice
from chunkpilot_core.cli import version
from chunkpilot_core.config import build, option
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.safety.runtime import setup
from chunkpilot_core.safety.runtime.arbiter import Arbiter
from chunkpilot_core.safety.runtime.checks import MANDATORY
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.safety.runtime.guard import Guard, GuardTick
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.safety.runtime.tightening import Tightening
from chunkpilot_core.types import ArmState, F64, GuardEvent, Input, nanoseconds, Reaction, seconds
from chunkpilot_nodes import convert, lasting, params, qos, spin
from chunkpilot_nodes.guard_inputs import Inputs, SERVICES, TOPICS
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.parameter import Parameter
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
        arbiter = params.declare(self, Arbiter.Config)
        gate = params.declare(self, GateConfig, 'gate.')
        tightening = params.declare(self, Tightening, 'limits.', read_only=False)
        checks = {
            name: params.declare(self, registry.get('safety', name).Config, f'{name}.')
            for name in (*MANDATORY, *self._config.extra_checks)
        }
        self._robot = robots.load(self._config.robot)
        distances = choice.resolve(guard.distances, self._robot)
        # By name from here on: a bag is decided once more in the same way, wherever that is.
        guard = replace(guard, distances=distances or guard.distances)
        self._session = secrets.randbits(63) + 1
        parts = {
            'config': guard,
            'machine': machine,
            'arbiter': arbiter,
            'gate': gate,
            'tightening': tightening,
            'checks': checks,
            'extra_checks': self._config.extra_checks,
        }
        self._guard = Guard(self._robot, epoch=time.time_ns(), session=self._session, **parts)
        self._inputs = Inputs(self._guard)
        self._verdicts_required = checks['chunk_verdict'].require
        self._taken: list[Input] = []  # since the last tick
        self._period_ns = nanoseconds(guard.period_s)
        self._ticked_ns = 0  # ROS time of the last tick
        self._scale = -1.0
        self._relayed = False
        self._costs: deque[float] = deque(maxlen=1000)
        self._periods: deque[float] = deque(maxlen=1000)
        self._tick: GuardTick | None = None
        self._last_reason = ''
        self._connect()
        self.add_on_set_parameters_callback(self._on_set)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(LATE * guard.period_s, self._on_timer, clock=steady)
        self.create_timer(1.0, self._publish_state, clock=steady)
        self._publish_parameters(setup.values_of(parts))
        self._run_tick(on_timer=True)
        self.get_logger().info(
            f'robot {self._robot.name}, limits {self._robot.limits_hash}, '
            f'{1.0 / guard.period_s:g} Hz, ramp {machine.ramp_s:g} s, '
            f'checks {list(checks)}, verdicts of chunks '
            f'{"required" if checks["chunk_verdict"].require else "not required"}, '
            f'calibration {self._guard.watched()["calibration"]}, '
            f'distances by {distances or "nothing"}, DISARMED'
        )
        if not distances:
            self.get_logger().warning(
                f"robot {self._robot.name} has no key 'collision': nothing keeps the arm off "
                'itself and its surroundings but the workspace of its tool point'
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
        self._snapshot = create(GuardParameters, 'guard/parameters', qos.LATCHED)
        for topic, (kind, profile) in TOPICS.items():
            if profile is qos.KEPT:
                lasting.subscribe(self, kind, topic, self._taker(topic))
            else:
                self.create_subscription(kind, topic, self._taker(topic), profile)
        for name in SERVICES:
            self.create_service(GuardCommand, f'guard/{name}', self._answer(name))
        self.create_service(MoveTo, 'guard/move_to', self._on_move_to)
        self.create_service(ApproveAction, 'guard/approve', self._on_approve)
        self._driver = {
            name: self.create_client(Trigger, f'driver/{name}') for name in ('stop', 'clear')
        }

    # ---- what comes in --------------------------------------------------------------------------

    def _taker(self, topic: str) -> Callable[[Any], None]:
        def take(msg: Any) -> None:
            now_ns = self.now_ns()
            self._taken.append(Input(topic, convert.to_ns(msg.header.stamp), now_ns))
            if not self._inputs.take(topic, msg, now_ns):
                return
            if topic == 'estop':
                self._run_tick(on_timer=True)
            # Never two ticks within half a period: the next one takes this command.
            elif not 0 <= now_ns - self._ticked_ns < self._period_ns // 2:
                self._run_tick(on_timer=False)

        return take

    def _on_timer(self) -> None:
        self._run_tick(on_timer=True)

    # ---- requests -------------------------------------------------------------------------------

    def _answer(self, name: str) -> Callable[[Any, Any], Any]:
        request_of: Callable[[int], tuple[bool, str]] = getattr(self._guard, name)

        def answer(request: GuardCommand.Request, response: GuardCommand.Response) -> Any:
            now_ns, before = self.now_ns(), self._guard.machine.state
            done = response.success, response.message = request_of(now_ns)
            response.arm_epoch = int(self._guard.machine.epoch)
            response.state = int(self._guard.machine.state)
            self._tell_request(name, done, now_ns, before)
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
        now_ns, fraction = self.now_ns(), float(request.speed_fraction)
        done = response.success, response.message = self._guard.move_to(goal, fraction, now_ns)
        wished = np.zeros(0) if goal is None else goal
        state = self._guard.machine.state
        self._tell_request('move_to', done, now_ns, state, wished, fraction)
        self._publish_state()
        return response

    def _on_approve(self, request: ApproveAction.Request, response: ApproveAction.Response) -> Any:
        now_ns, state = self.now_ns(), self._guard.machine.state
        done = response.success, response.message = self._guard.approve(
            request.channel, request.approved, now_ns, request.operator_name
        )
        fraction = float(request.approved)
        self._tell_request('approve', done, now_ns, state, fraction=fraction, of=request.channel)
        self.get_logger().info(f'approve by {request.operator_name or "nobody"}: {done[1]}')
        return response

    def _on_set(self, changes: Sequence[Parameter]) -> SetParametersResult:
        """Let limits be tightened; everything else is read-only anyway."""
        prefix = 'limits.'
        given = {
            change.name.removeprefix(prefix): change.value
            for change in changes
            if change.name.startswith(prefix)
        }
        if not given:
            return SetParametersResult(successful=True)
        try:
            wanted = build(Tightening, {**asdict(self._guard.tightening), **given}, prefix)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        now_ns, state = self.now_ns(), self._guard.machine.state
        done, reason = self._guard.tighten(wanted, now_ns)
        limits = np.array([wanted.velocity_fraction, wanted.tool_speed])
        self._tell_request('tighten', (done, reason), now_ns, state, limits)
        self.get_logger().info(f'tighten: {"done" if done else "refused"}, {reason}')
        return SetParametersResult(successful=done, reason=reason)

    def _tell_request(
        self,
        name: str,
        answer: tuple[bool, str],
        now_ns: int,
        before: ArmState,
        goal: F64 | None = None,
        fraction: float = 0.0,
        of: str = '',
    ) -> None:
        """Publish what was asked for by service: a bag has topics only, and must be replayable."""
        event = GuardEvent(
            stamp_ns=now_ns,
            arm_epoch=self._guard.machine.epoch,
            kind='request',
            from_state=before,
            to_state=self._guard.machine.state,
            check=name,
            joint=of,
            value=fraction,
            limit=float(answer[0]),
            reason=answer[1],
            requested=np.zeros(0) if goal is None else goal,
        )
        self._taken.append(Input('request', now_ns, now_ns))
        self._events.publish(convert.guard_event_to_msg(event, self._session))

    # ---- the tick -------------------------------------------------------------------------------

    def _run_tick(self, on_timer: bool) -> None:
        self._timer.reset()
        now_ns, steady_ns = self.now_ns(), time.monotonic_ns()
        cpu_ns = time.thread_time_ns()
        positions, command = self._guard.advance(now_ns, steady_ns)
        if positions is not None:  # before anything is told: the robot waits for this
            self._send(positions, command.tick_steady_ns if command else 0)
        tick = self._guard.report(on_timer)
        cpu_s = float(np.float32(seconds(time.thread_time_ns() - cpu_ns)))  # as in the verdict
        self._guard.on_cost(cpu_s, now_ns)
        self._ticked_ns, self._tick = now_ns, tick
        said = tick.verdict
        if said.reaction and said.reason:
            self._last_reason = f'{said.reaction.name} by {said.check}: {said.reason}'
        self._costs.append(cpu_s)
        self._periods.append(tick.verdict.period_s)
        self._publish(tick, cpu_s)
        self._relay_estop(tick)

    def _send(self, positions: F64, tick_steady_ns: int) -> None:
        for publisher, columns in self._outputs:
            publisher.publish(convert.positions_to_msg(positions[columns], tick_steady_ns))

    def _publish(self, tick: GuardTick, cpu_s: float) -> None:
        taken, self._taken = self._taken, []
        verdict = convert.verdict_to_msg(tick.verdict, self._session, taken)
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

    def _publish_parameters(self, values: Mapping[str, Any]) -> None:
        """Tell what decisions rest on: a bag with it can be decided once more."""
        names, texts = setup.to_json(values)
        files = setup.files_of(values)
        msg = GuardParameters(
            session=self._session,
            arm_epoch=int(self._guard.machine.epoch),
            version=version(),
            robot=self._robot.name,
            limits_hash=self._robot.limits_hash,
            robot_yaml=robots.find(self._config.robot).read_text(encoding='utf-8'),
            names=names,
            values=texts,
            file_names=list(files),
            file_texts=list(files.values()),
        )
        msg.header.stamp = convert.to_time(self.now_ns())
        self._snapshot.publish(msg)

    def _publish_state(self) -> None:
        self._states.publish(convert.guard_state_to_msg(self._guard.status(), self._session))

    def _log(self, event: GuardEvent) -> None:
        if event.kind == 'transition':
            text = f'{event.from_state.name} -> {event.to_state.name}: {event.reason}'
            if event.to_state in (ArmState.ARMED, ArmState.DISARMED):
                self.get_logger().info(text)
            else:  # not from the same line: rclpy raises when a call changes its severity
                self.get_logger().warning(text)
        elif event.kind == 'gate':
            self.get_logger().info(f'{event.check}: {event.reason}')
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
        now_ns, before = self.now_ns(), self._guard.machine.state
        reason = f'{type(error).__name__} in guard_node: {error}'
        done, _ = self._guard.stop(now_ns, reason)
        self._tell_request('fault', (done, reason), now_ns, before)

    def shutdown(self) -> None:
        """Decelerate, fall silent, and say so."""
        now_ns, before = self.now_ns(), self._guard.machine.state
        self._tell_request('disarm', self._guard.disarm(now_ns), now_ns, before)
        until = time.monotonic() + SHUTDOWN_S
        while time.monotonic() < until and self._tick is not None:
            self._run_tick(on_timer=True)
            if self._guard.silent or not self._tick.verdict.sent_velocity.any():
                break
            time.sleep(seconds(self._period_ns))
        self._publish_state()
        self.wait_until_heard(self._states)

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return state, counters, CPU and periods."""
        status = self._guard.status()
        counters = self._tick.verdict.counters if self._tick else ()
        numbers: dict[str, object] = {
            'state': status.state.name,
            'arm_epoch': status.arm_epoch,
            'limits_hash': status.limits_hash,
            'ticks_by_reaction': dict(zip((r.name for r in Reaction), counters, strict=False)),
            'last_reason': self._last_reason,
            'velocity_fraction': self._guard.tightening.velocity_fraction,
            'speed_scale': round(self._scale, 3),
            'chunk_verdicts_required': self._verdicts_required,
            'tick_cpu_ms_p50': _quantile_ms(self._costs, 50),
            'tick_cpu_ms_p99': _quantile_ms(self._costs, 99),
            'period_ms_p50': _quantile_ms(self._periods, 50),
            'period_ms_p99': _quantile_ms(self._periods, 99),
            'waits_for': list(self._guard.waits_for),
            **self._guard.watched(),
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
