"""
The action ``run_task``: episodes one after the other, their outcomes, and the numbers of the run.

The order of things is :class:`chunkpilot_core.runs.episodes.Run`; this file hears, calls and
publishes for it. Nothing in here blocks: services are called asynchronously, waits are ticks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import json
import math
from pathlib import Path
import time
from typing import Any

from chunkpilot.action import RunTask
from chunkpilot.msg import (
    EpisodeEvent,
    ExecutionStats,
    GuardState,
    HorizonDecision,
    Intervention,
    Observation,
    Outcome,
    PolicyInfo,
    SafetyVerdict,
    SimScene,
)
from chunkpilot.msg import Task as TaskMsg
from chunkpilot.srv import GuardCommand, MoveTo, SimReset
from chunkpilot_core import registry, robot, types
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError, InvalidDataError
from chunkpilot_core.files import write_json
from chunkpilot_core.runs.episodes import (
    Announce,
    Call,
    check_request,
    Effect,
    Finish,
    NO_RECORDER,
    Run,
    RunConfig,
    Start,
)
from chunkpilot_core.runs.summary import Tally
from chunkpilot_core.runs.world import World
from chunkpilot_nodes import convert, params, qos, spin
from chunkpilot_nodes.monitor import Load, Restarts, versions
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.clock import Clock, ClockType
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.task import Future
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

PERIOD_S = 0.02
SLOW_PERIOD_S = 0.2
GUARD_SERVICES = ('guard/arm', 'guard/disarm', 'guard/reset')


@dataclass(frozen=True)
class Config:
    """What the task node works with."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    summary: str = option('', 'file that the summary of a run is written to; empty = none')


class TaskNode(spin.SupervisedNode):
    """Serves one run of episodes at a time."""

    def __init__(self) -> None:
        super().__init__('task_node')
        self._config = params.declare(self, Config)
        self._run_config = params.declare(self, RunConfig)
        self._robot = robot.load(self._config.robot)
        self._world, self._tally = World(), Tally()
        self._run: Run | None = None
        self._task: types.Task | None = None
        self._goal: ServerGoalHandle | None = None
        self._refusal = ''
        self._policy = PolicyInfo()
        self._faults: list[dict[str, object]] = []
        self._restarts, self._load = Restarts(self), Load()
        self._connect()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(PERIOD_S, self._tick, clock=steady)
        self.create_timer(SLOW_PERIOD_S, self._look, clock=steady)
        self.create_timer(1.0, self._sample, clock=steady)
        self.get_logger().info(f'robot {self._robot.name}, waiting for run_task goals')

    def _connect(self) -> None:
        for kind, topic, callback, profile in (
            (GuardState, 'guard/state', self._on_guard, qos.LATCHED),
            (PolicyInfo, 'policy/info', self._on_policy, qos.LATCHED),
            (ExecutionStats, 'execution_stats', self._on_stats, qos.RELIABLE_10),
            (HorizonDecision, 'horizon', self._on_horizon, qos.RELIABLE_10),
            (Bool, 'driver/stopped', self._on_driver, qos.LATCHED),
            (Intervention, 'intervention', self._on_intervention, qos.RELIABLE_10),
            (DiagnosticStatus, 'faults', self._on_faults, qos.LATCHED),
        ):
            self.create_subscription(kind, topic, callback, profile)
        # What comes at control rate is only looked at as often as it is needed.
        self._scene = Newest(self, SimScene, 'sim/scene', qos.SENSOR, self._read_scene)
        self._verdict = Newest(self, SafetyVerdict, 'verdict', qos.SENSOR, self._read_verdict)
        self._observation = Newest(
            self, Observation, 'observation', qos.SENSOR, self._read_observation
        )
        self._tasks = self.create_publisher(TaskMsg, 'task', qos.LATCHED)
        self._episodes = self.create_publisher(EpisodeEvent, 'episode', qos.LATCHED)
        self._outcomes = self.create_publisher(Outcome, 'outcome', qos.LATCHED)
        self._remote = {name: self.create_client(GuardCommand, name) for name in GUARD_SERVICES}
        self._remote['guard/move_to'] = self.create_client(MoveTo, 'guard/move_to')
        self._remote['sim/reset'] = self.create_client(SimReset, 'sim/reset')
        self._remote['driver/clear'] = self.create_client(Trigger, 'driver/clear')
        self._server = ActionServer(
            self,
            RunTask,
            'run_task',
            self._execute,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
        )

    # ---- what it hears --------------------------------------------------------------------------

    def _on_guard(self, msg: GuardState) -> None:
        self._world.guard = convert.guard_state_from_msg(msg)
        self._world.hear('guard', int(msg.session), time.monotonic_ns())

    def _read_verdict(self, msg: SafetyVerdict, steady_ns: int) -> None:
        self._world.hear('guard', int(msg.session), steady_ns)
        if self._run is not None:
            self._tally.add_counters(int(msg.session), tuple(int(count) for count in msg.counters))

    def _read_scene(self, msg: SimScene, steady_ns: int) -> None:
        world = self._world
        joints = dict(pairs(msg.joint_names, msg.joint_positions, 'sim/scene: joints'))
        world.hear('sim', int(msg.session), steady_ns)
        world.success, world.scene_ns = bool(msg.success), convert.to_ns(msg.header.stamp)
        world.joints = joints
        if self._run is not None and self._run.phase == 'running':
            self._tally.add_latency(int(msg.commands), float(msg.command_latency_s))
        self._follow_goal(msg)

    def _follow_goal(self, msg: SimScene) -> None:
        """Announce the task anew, under its id, when its goal has moved."""
        task = self._task
        if task is None or msg.task_kind != task.kind or len(msg.goal) != len(task.goal):
            return
        if convert.to_ns(msg.header.stamp) > self._announced_ns and any(
            now != before for now, before in zip(msg.goal, task.goal, strict=True)
        ):
            self._announce(replace(task, goal=np.array(msg.goal, np.float32)))

    def _announce(self, task: types.Task) -> None:
        self._task, self._announced_ns = task, self.now_ns()
        self._tasks.publish(convert.task_to_msg(task, self._announced_ns, self._robot.world_frame))

    def _on_policy(self, msg: PolicyInfo) -> None:
        self._policy = msg
        self._world.policy_ready, self._world.policy_state = bool(msg.ready), msg.state
        self._world.doubted_ns = 0
        self._world.policy_task = msg.task_kind
        self._world.hear('policy', int(msg.session), time.monotonic_ns())

    def _read_observation(self, msg: Observation, steady_ns: int) -> None:
        world = self._world
        unseen = [
            name
            for name, value in pairs(msg.feature_names, msg.features, 'observation: features')
            if math.isnan(value)
        ]
        world.hear('perception', int(msg.id.session), steady_ns)
        world.observed_task, world.observation_bad = msg.task_id, ''
        if msg.health == Observation.BAD:
            world.observation_bad = msg.health_reason or 'observation is bad'
        elif unseen:
            world.observation_bad = f'perception has not seen {", ".join(unseen)}'

    def _on_driver(self, msg: Bool) -> None:
        self._world.driver_stopped = bool(msg.data)

    def _on_intervention(self, msg: Intervention) -> None:
        self._world.hear('teleop', 0, time.monotonic_ns())

    def _on_faults(self, msg: DiagnosticStatus) -> None:
        if not all(entry.value.isdecimal() for entry in msg.values):
            raise InvalidDataError('how often a fault was applied must be a whole number')
        self._faults = [{'fault': one.key, 'applied': int(one.value)} for one in msg.values]

    def _on_stats(self, msg: ExecutionStats) -> None:
        self._world.hear('execution', int(msg.session), time.monotonic_ns())
        stats = convert.execution_stats_from_msg(msg)
        self._world.count_stats(stats)
        self._tally.add_stats(stats)

    def _on_horizon(self, msg: HorizonDecision) -> None:
        if self._run is not None and self._run.phase == 'running':
            self._tally.add_decision(self._run.episode_id, convert.horizon_from_msg(msg))

    # ---- the action -----------------------------------------------------------------------------

    def _on_goal(self, goal: RunTask.Goal) -> GoalResponse:
        # Whatever else is wrong is told in the result; a refused goal carries no words.
        if self._run is not None:
            self.get_logger().warning(
                f'goal refused: {self._run.run_id!r} is in progress, and one run goes at a time'
            )
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _on_cancel(self, goal: ServerGoalHandle) -> CancelResponse:
        if self._run is not None:
            self._run.cancel()
        return CancelResponse.ACCEPT

    def _on_accepted(self, goal: ServerGoalHandle) -> None:
        """
        Start a run; the goal is executed, in rclpy's words, when it is over.

        A callback that waits for the end would be polled all the time: 30 % of a core.
        """
        request = goal.request
        try:
            timeout_s = self._check(request)
        except ChunkpilotError as error:
            self._refusal = str(error)
            goal.execute()
            return
        self._refusal = ''
        self._tally, self._goal = Tally(), goal
        self._restarts.start()
        self._load.sample()
        self._run = Run(
            self._run_config,
            self._robot,
            self._world,
            f'{request.task_kind}-{int(time.time())}',  # simulated time may be nothing yet
            request.task_kind,
            int(request.episodes),
            int(request.seed),
            timeout_s,
        )

    def _execute(self, goal: ServerGoalHandle) -> RunTask.Result:
        """Hand over the result."""
        if self._refusal or self._run is None:
            goal.abort()
            return RunTask.Result(success=False, message=self._refusal)
        run, self._run, self._goal = self._run, None, None
        return self._conclude(goal, run)

    def _check(self, request: RunTask.Goal) -> float:
        """
        Check that a goal can be served, and return how long its episodes may last [s].

        :raises ChunkpilotError: numbers that are not allowed, unknown task, a policy for another
            one, or nobody who records
        """
        check_request(int(request.episodes), int(request.seed), float(request.timeout_s))
        kind, trained = request.task_kind, self._world.policy_task
        task = registry.get('tasks', kind)()
        if trained and trained != kind:
            raise ChunkpilotError(
                f'the policy {self._policy.name!r} was trained for {trained!r}, not for {kind!r}'
            )
        services = {name for name, _ in self.get_service_names_and_types()}
        if request.record and self.resolve_service_name('recorder/start') not in services:
            raise ChunkpilotError(f'{NO_RECORDER}; launch the graph with record:=true')
        return float(request.timeout_s) or float(task.timeout_s)

    def _conclude(self, goal: ServerGoalHandle, run: Run) -> RunTask.Result:
        self._tally.add_cpu(*self._load.sample())
        summary = self._tally.summary(
            task=run.task_kind,
            policy=self._policy.name,
            policy_version=int(self._policy.version),
            strategy=next((entry.strategy for entry in self._tally.stats.values()), None),
            node_restarts=self._restarts.counts(),
            faults=self._faults,
            versions=versions(),
        )
        if self._config.summary:
            write_json(Path(self._config.summary), summary)
        if goal.is_cancel_requested:
            goal.canceled()
        elif run.failure:
            goal.abort()
        else:
            goal.succeed()
        return RunTask.Result(
            success=not run.failure,
            message=run.failure,
            episodes=len(run.finished),
            successes=summary['successes'],
            aborted=summary['aborted'],
            summary_json=json.dumps(summary),
        )

    # ---- what it does ---------------------------------------------------------------------------

    def _tick(self) -> None:
        run = self._run
        if run is None or run.done or self._goal is None:
            return
        self._scene.read()
        if run.phase != 'running':
            self._look()
        for effect in run.tick(self.now_ns(), time.monotonic_ns()):
            self._do(run, effect)
        if run.done:
            self._goal.execute()

    def _look(self) -> None:
        """Read what changes slowly."""
        self._verdict.read()
        self._observation.read()

    def _do(self, run: Run, effect: Effect) -> None:
        if isinstance(effect, Call):
            self._call(run, effect)
        elif isinstance(effect, Announce):
            self._announce(effect.task)
        elif isinstance(effect, Start):
            self._publish_event(EpisodeEvent.START, effect)
            self._feedback(run)
        else:
            self._finish(run, effect)

    def _finish(self, run: Run, end: Finish) -> None:
        self._tally.finished.append(end)
        self._task = None
        words = f'{end.episode_id} seed {end.seed}: {end.outcome.name}, {end.reason}'
        self.get_logger().info(f'{words} ({end.duration_s:.1f} s)')
        if end.started:
            outcome = Outcome(
                episode_id=end.episode_id,
                outcome=int(end.outcome),
                reward=float(end.outcome is types.EpisodeOutcome.SUCCESS),
                source='task',
                reason=end.reason,
                duration_s=float(end.duration_s),
            )
            outcome.header.stamp = convert.to_time(self.now_ns())
            self._outcomes.publish(outcome)
            self._publish_event(EpisodeEvent.END, end)
        self._feedback(run)

    def _publish_event(self, event: int, effect: Start | Finish) -> None:
        keys, values = convert.keys_values({'goal': effect.task.goal.tolist()})
        msg = EpisodeEvent(
            event=event,
            episode_id=effect.episode_id,
            task_id=effect.task.id,
            task_kind=effect.task.kind,
            seed=effect.seed,
            arm_epoch=self._world.guard.arm_epoch if self._world.guard else 0,
            policy=self._policy.name,
            policy_version=int(self._policy.version),
            keys=keys,
            values=values,
        )
        msg.header.stamp = convert.to_time(self.now_ns())
        self._episodes.publish(msg)

    def _feedback(self, run: Run) -> None:
        if self._goal is not None:
            self._goal.publish_feedback(
                RunTask.Feedback(
                    episode=run.episode,
                    episode_id=run.episode_id,
                    phase=run.phase,
                    outcome=int(run.outcome),
                    elapsed_s=float(run.elapsed_s),
                )
            )

    def _call(self, run: Run, call: Call) -> None:
        client = self._remote[call.service]
        if not client.service_is_ready():
            run.answer(call.number, False, 'the service is not there')
            return
        if call.service == 'sim/reset':
            request: Any = SimReset.Request(
                task_kind=run.task_kind, seed=call.seed, reset_robot=True
            )
        elif call.service == 'guard/move_to':
            request = MoveTo.Request()
        elif call.service == 'driver/clear':
            request = Trigger.Request()
        else:
            request = GuardCommand.Request(source='task_node', reason=f'episode {run.episode_id}')

        def answered(future: Future) -> None:
            response = future.result()
            task = convert.task_from_msg(response.task) if hasattr(response, 'task') else None
            run.answer(call.number, bool(response.success), response.message, task)

        client.call_async(request).add_done_callback(answered)

    def _sample(self) -> None:
        self._restarts.look()
        if self._run is not None:
            self._tally.add_cpu(*self._load.sample())
            self._feedback(self._run)

    def diagnose(self) -> tuple[bytes, str, dict[str, object]]:
        """Return the phase and what became of the episodes so far."""
        run = self._run
        numbers: dict[str, object] = {'restarts': self._restarts.counts()}
        if run is not None:
            numbers |= {'episode': run.episode, 'finished': len(run.finished)}
        return b'\x00', run.phase if run else 'waiting for a goal', numbers


def pairs(names: Sequence[str], values: Sequence[float], what: str) -> list[tuple[str, float]]:
    """
    Put names and values of a message together.

    :raises InvalidDataError: if there are more of the ones than of the others
    """
    if len(names) != len(values):
        raise InvalidDataError(f'{what}: {len(names)} names, but {len(values)} values')
    return list(zip(names, values, strict=True))


class Newest:
    """A subscription that keeps the newest message as bytes, and reads it when asked."""

    def __init__(
        self,
        node: spin.SupervisedNode,
        kind: type[Any],
        topic: str,
        profile: QoSProfile,
        read: Callable[[Any, int], None],
    ) -> None:
        self._node, self._kind, self._read = node, kind, read
        self._data: bytes | None = None
        self._steady_ns = 0
        node.create_subscription(kind, topic, self._keep, profile, raw=True)

    def _keep(self, data: bytes) -> None:
        self._data, self._steady_ns = data, time.monotonic_ns()

    def read(self) -> None:
        """Hand on the newest message and when it came, if there is one that was not read."""
        data, self._data = self._data, None
        if data is not None:
            try:
                self._read(deserialize_message(data, self._kind), self._steady_ns)
            except InvalidDataError as error:  # is not ours: whoever sent it counts as silent
                self._node.get_logger().warning(f'{error}', throttle_duration_sec=1.0)


def main() -> None:
    """Run the node."""
    spin.main(TaskNode, executor='events')


if __name__ == '__main__':
    main()
