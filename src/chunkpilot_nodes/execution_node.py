"""
Turns chunks into a steady stream of commands, and asks for the next one in time.

Topics in: ``chunk``, ``observation``, ``joint_states``, ``guard/state``, ``guard/speed_scale``,
``guard/events`` (wishes for another chunk), ``chunk_verdict`` (other rows than those of a bad
chunk), ``task``, ``episode``, ``policy/info``. Out:
``command`` (100 Hz while an episode runs and the guard is armed), ``chunk_request``, ``horizon``,
``execution_stats``, on wish ``plot/...``. All the thinking is in
:class:`chunkpilot_core.execution.runtime.executor.Executor`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import secrets
import time
from typing import Any

from chunkpilot.msg import (
    ActionChunk,
    ChunkRequest,
    ChunkVerdict,
    Command,
    EpisodeEvent,
    ExecutionStats,
    GuardEvent,
    GuardState,
    HorizonDecision,
    Observation,
    PolicyInfo,
    Task,
)
from chunkpilot_core import registry, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError, InvalidDataError
from chunkpilot_core.execution.runtime.executor import Executor, Tick
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.types import F64, nanoseconds, PolicySpec
from chunkpilot_core.types import JointState as JointStateData
from chunkpilot_nodes import convert, params, qos, spin
from chunkpilot_nodes.plots import Plots
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64

PHASE = 0.4  # of a period from a joint state to a tick: by then whoever reads it is done


@dataclass(frozen=True)
class Config:
    """Which robot, and how chunks are executed."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    strategy: str = option('upcycling', 'plug-in of the family execution')
    max_state_age_s: float = option(
        0.25,
        'without a joint state newer than this nothing is commanded',
        unit='s',
        min=0.02,
        max=5.0,
    )
    plots: bool = option(
        False, 'publish commands, horizons and counters for viewers, too: topics plot/...'
    )


class ExecutionNode(spin.SupervisedNode):
    """Thin adapter around :class:`Executor`."""

    def __init__(self) -> None:
        super().__init__('execution_node')
        self._config = params.declare(self, Config)
        self._execution = params.declare(self, ExecutionConfig)
        plugin = registry.get('execution', self._config.strategy)
        self._options = params.declare(self, plugin.Config, f'{self._config.strategy}.')
        self._surprise = params.declare(self, SurpriseConfig, 'surprise.')
        self._robot = robots.load(self._config.robot)
        self._kinematics = Kinematics(self._robot)
        self._executor = self._new_executor()
        self._max_age_ns = nanoseconds(self._config.max_state_age_s)
        self._episode: tuple[str, int] | None = None  # id and stamp of the one that runs
        self._spec: PolicySpec | None = None
        self._trouble = self._warned = ''
        self._joints: JointStateData | None = None
        self._measured: F64 | None = None  # of self._joints, made when it is needed
        self._latched: dict[Callable[[Any], None], Any] = {}
        self._connect()
        self._start_timers(self._execution.period_s)
        self.get_logger().info(
            f'strategy {self._config.strategy}: {self._options}, '
            f'{1.0 / self._execution.period_s:g} Hz, starved: {self._execution.starvation}, '
            f'surprise: {"cuts" if self._surprise.enabled else "off"}'
        )

    def _new_executor(self) -> Executor:
        strategy = registry.get('execution', self._config.strategy)(self._options)
        session = secrets.randbits(63) + 1
        surprise = Surprise(self._surprise) if self._surprise.enabled else None
        return Executor(strategy, self._execution, self._robot, session, surprise)

    def _connect(self) -> None:
        create, subscribe = self.create_publisher, self.create_subscription
        self._commands = create(Command, 'command', qos.COMMAND)
        self._requests = create(ChunkRequest, 'chunk_request', qos.RELIABLE_10)
        self._horizons = create(HorizonDecision, 'horizon', qos.RELIABLE_10)
        self._stats = create(ExecutionStats, 'execution_stats', qos.RELIABLE_10)
        self._plots = Plots(self) if self._config.plots else None
        subscribe(ActionChunk, 'chunk', self._on_chunk, qos.RELIABLE_10)
        subscribe(Observation, 'observation', self._on_observation, qos.RELIABLE_10)
        subscribe(JointState, 'joint_states', self._on_joint_state, qos.SENSOR)
        subscribe(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        subscribe(GuardEvent, 'guard/events', self._on_guard_event, qos.EVENTS)
        subscribe(ChunkVerdict, 'chunk_verdict', self._on_verdict, qos.RELIABLE_10)
        subscribe(Float64, 'guard/speed_scale', self._on_scale, qos.LATCHED)
        subscribe(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        subscribe(Task, 'task', self._on_task, qos.LATCHED)
        subscribe(PolicyInfo, 'policy/info', self._on_policy, qos.LATCHED)

    def _start_timers(self, period_s: float) -> None:
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._simulated = bool(self.get_parameter('use_sim_time').value)
        # Simulated time may run at any speed, and the control period is a time of the robot. Both
        # kinds of timer keep their absolute deadlines; missed ones are skipped, not made up for.
        clock = self.get_clock() if self._simulated else steady
        self._ticker = self.create_timer(period_s, self._on_tick, clock=clock)
        self._shifter = self.create_timer(PHASE * period_s, self._shift, clock=steady)
        self._shifter.cancel()
        self._out_of_phase = not self._simulated
        self.create_timer(1.0, self._publish_stats, clock=steady)

    # ---- what comes in --------------------------------------------------------------------------

    def _on_chunk(self, msg: ActionChunk) -> None:
        try:
            refusal = self._executor.receive(convert.chunk_from_msg(msg), self.now_ns())
        except InvalidDataError as error:
            refusal = str(error)
        if refusal is not None:
            self.get_logger().warning(
                f'chunk {msg.id.seq} of {msg.policy} refused: {refusal}', throttle_duration_sec=1.0
            )

    def _on_observation(self, msg: Observation) -> None:
        self._executor.observe(convert.observation_from_msg(msg), self.now_ns())

    def _on_joint_state(self, msg: JointState) -> None:
        try:
            self._joints, self._measured = convert.joint_state_from_msg(msg), None
            if self._out_of_phase:
                self._out_of_phase = False
                self._shifter.reset()
        except InvalidDataError as error:
            self.get_logger().warning(f'{error}', throttle_duration_sec=1.0)

    def _on_guard(self, msg: GuardState) -> None:
        self._executor.set_guard(convert.guard_state_from_msg(msg), self.now_ns())
        self._latched[self._on_guard] = msg

    def _on_guard_event(self, msg: GuardEvent) -> None:
        if msg.kind == 'replan':
            self._executor.replan(convert.guard_event_from_msg(msg), self.now_ns())

    def _on_verdict(self, msg: ChunkVerdict) -> None:
        self._executor.judged(convert.chunk_verdict_from_msg(msg), self.now_ns())

    def _on_scale(self, msg: Float64) -> None:
        self._executor.set_speed_scale(float(msg.data))

    def _on_episode(self, msg: EpisodeEvent) -> None:
        self._latched[self._on_episode] = msg
        running = msg.event == EpisodeEvent.START
        self._out_of_phase = running and not self._simulated
        self._episode = (msg.episode_id, convert.to_ns(msg.header.stamp)) if running else None
        self._executor.set_episode(running, msg.task_id, self.now_ns(), msg.episode_id)
        if not running:
            self._publish_stats()  # of the whole episode; the counters stay until the next

    def _on_task(self, msg: Task) -> None:
        """Follow a task that changes within an episode; the one it starts with is in its event."""
        if self._episode is None or convert.to_ns(msg.header.stamp) <= self._episode[1]:
            return
        self._latched[self._on_task] = msg
        self._executor.set_episode(True, msg.id, self.now_ns(), self._episode[0])

    def _on_policy(self, msg: PolicyInfo) -> None:
        self._latched[self._on_policy] = msg
        self._spec, self._trouble = None, f'policy {msg.policy}: {msg.state}'
        self._measured = None
        try:
            if msg.ready:
                spec = convert.policy_info_from_msg(msg)
                self._executor.configure(spec, int(msg.session))
                self._spec, self._trouble = spec, ''
            else:
                self._executor.configure(None)
        except ChunkpilotError as error:
            self._executor.configure(None)
            self._trouble = str(error)
            self.get_logger().error(f'policy {msg.policy} can not be executed: {error}')

    # ---- the tick -------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        now_ns = self.now_ns()
        tick = self._executor.tick(
            now_ns,
            self._measure(now_ns) if self._executor.running else None,
            time.monotonic_ns(),
            now_ns if self._simulated else None,
        )
        if tick.command is not None:
            self._commands.publish(convert.command_to_msg(tick.command))
            if self._plots is not None:
                self._plots.command(tick.command)
        if tick.request is not None:
            self._requests.publish(convert.request_to_msg(tick.request))
        self._publish_decision(tick, now_ns)

    def _shift(self) -> None:
        """
        Let ticks follow joint states by a part of a period.

        Robot and ticks run at the same rate with a phase that chance gave them: where a joint
        state wakes every reader, or a simulator computes its step, a command has to wait. Done
        once an episode, before anything moves.
        """
        self._shifter.cancel()
        self._ticker.reset()
        self._executor.restart_pacing()

    def _measure(self, now_ns: int) -> F64 | None:
        joints = self._joints
        if self._spec is None or joints is None or now_ns - joints.stamp_ns > self._max_age_ns:
            return None
        if self._measured is None:
            try:
                self._measured = spaces.from_joints(self._spec.space, self._kinematics, joints)
            except InvalidDataError as error:
                self._joints = None
                self.get_logger().error(f'{error}', throttle_duration_sec=1.0)
        return self._measured

    def _publish_decision(self, tick: Tick, now_ns: int) -> None:
        if tick.decision is not None:
            self._horizons.publish(convert.horizon_to_msg(tick.decision, now_ns))
            if self._plots is not None:
                self._plots.horizon(tick.decision)

    def _publish_stats(self) -> None:
        stats = self._executor.stats()
        self._stats.publish(convert.execution_stats_to_msg(stats))
        if self._plots is not None:
            self._plots.stats(stats)

    # ---- the node's own troubles ----------------------------------------------------------------

    def on_fault(self, error: Exception) -> None:
        """Start over with a new executor: an exception left plans in an unknown state."""
        if isinstance(error, ChunkpilotError):  # a message was refused, nothing was begun
            return
        self._executor = self._new_executor()
        for callback, msg in list(self._latched.items()):
            callback(msg)

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return what runs, and the counters that users ask for first."""
        stats = self._executor.stats()
        numbers: dict[str, object] = {
            name: getattr(stats, name)
            for name in (
                'strategy',
                'ticks',
                'starved_ticks',
                'late_ticks',
                'executed_rows',
                'discarded_rows',
                'policy_calls',
                'chunks_rejected',
                'cuts',
                'timeouts',
                'mean_horizon',
                'calls_saved_ratio',
                'delay_p50_s',
                'delay_p95_s',
                'observation_age_p50_s',
                'observation_age_p99_s',
                'worst_lateness_s',
            )
        }
        if self._trouble:
            return DiagnosticStatus.WARN, self._trouble, numbers
        warning = self._executor.warning()
        if warning:
            if not self._warned:
                self.get_logger().warning(warning)
            self._warned = warning
            return DiagnosticStatus.WARN, warning, numbers
        message = 'running' if self._spec else 'waiting for policy/info'
        return DiagnosticStatus.OK, message, numbers


def main() -> None:
    """Run the node."""
    spin.main(ExecutionNode, executor='events')


if __name__ == '__main__':
    main()
