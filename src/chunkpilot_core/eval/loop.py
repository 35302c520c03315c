"""
One episode after another in a closed loop on a virtual clock: the graph without ROS and waiting.

World, renderer, perception, policy, executor and guard are the classes that the nodes wrap, ticked
in the order in which their messages would flow at 100 Hz. Nothing depends on the machine's speed,
and an episode depends on its seed alone, not on those before it.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
import copy
from dataclasses import dataclass, field, replace
from functools import partial
import math
from typing import Any

from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.clearance.runtime.bodies import Obstacle, ObstacleList, Shape, TOOL
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.eval.forked import forked
from chunkpilot_core.eval.inference import VirtualInference
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.motion import jerk
from chunkpilot_core.eval.prediction import Prediction, VirtualPrediction
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.runtime.executor import Executor, Tick
from chunkpilot_core.execution.runtime.surprise import monitor
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.safety.chunk_verdict import ChunkVerdict
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.sim.renderer import Renderer
from chunkpilot_core.sim.world import CONTROL_DT_S, World
from chunkpilot_core.tasks.base import TaskDefinition
from chunkpilot_core.types import (
    ArmState,
    ExecutedRows,
    F64,
    GuardStatus,
    Health,
    Image,
    JointState,
    nanoseconds,
    ObjectStatus,
    Observation,
    SafetyVerdict,
    seconds,
    Task,
)
import cv2
import numpy as np

SESSION = 1  # of every id here; real nodes draw it at random
START_NS = 10_000_000_000  # the clock of each episode begins here: 0 means "never" in stamps
WARM_UP_S = 2.0  # perception must have seen the scene by then
NOTES = 8  # reasons kept of an episode


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """Rates and delays of what surrounds the control loop; the defaults are the graph's."""

    observation_hz: float = option(50.0, 'rate of observations', unit='Hz', min=1.0, max=100.0)
    camera_hz: float = option(5.0, 'rate of images', unit='Hz', min=0.1, max=100.0)
    image_latency_s: float = option(
        0.04, 'time from exposure to perception', unit='s', min=0.0, max=5.0
    )
    image_noise: float = option(1.0, 'noise of pixels', unit='grey levels', min=0.0, max=50.0)
    camera: str = option('front', 'name in config/cameras')
    known_delays: int = option(
        32, 'delays that execution knows from before, as in a graph that runs on', min=0, max=4096
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    Fixed things in the way, made of a world and its seed; whether the guard knows them.

    ``held`` (3,) [m] is the size of a box that the guard is told of while perception says that the
    first object is held; None = what is carried is nobody's business.
    """

    make: Callable[[World, int], Sequence[Obstacle]]
    known: bool = True
    held: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """
    What happened in one episode; jerk is that of the sent tool motion [m/s3], ``interrupts`` are
    the reasons for which horizons were cut.
    """

    seed: int
    success: bool
    duration_s: float
    policy_calls: int
    executed_rows: int
    discarded_rows: int
    late_rows: int
    mean_horizon: float
    base_horizon: float
    ticks: int
    starved_ticks: int
    chunks_rejected: int
    unanswered: int
    cuts: int
    merges: int
    largest_merge_step: float
    peak_jerk: float
    rms_jerk: float
    observation_age_p50_s: float
    observation_age_p99_s: float
    first_action_s: float
    chunks_accepted: int = 0
    disturbances: int = 0
    interrupts: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()  # of the surroundings
    reactions: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> 'EpisodeResult':
        """
        Return a result that was kept as JSON, which knows no tuples.

        :raises TypeError: fields are missing or unknown
        """
        names = ('interrupts', 'touched', 'notes')
        lists = {name: tuple(values[name]) for name in names if name in values}
        return cls(**{**values, **lists})


@dataclass(frozen=True, slots=True)
class Frame:
    """One control tick, for those who look on: what was known and what was sent."""

    now_ns: int
    observation: Observation | None
    sent: F64 | None
    executed: list[ExecutedRows]


class Loop:
    """Runs episodes of one task with one policy; physics and renderer are made once."""

    def __init__(
        self,
        task: str | TaskDefinition,
        policy: Policy,
        latency: LatencyModel | None = None,
        config: LoopConfig | None = None,
        parts: Mapping[str, Any] | None = None,
        stopwatch_ns: Callable[[], int] | None = None,
    ) -> None:
        """
        Build the world around a policy.

        :param task: registered name, or a configured task
        :param parts: configurations by name: ``world``, ``disturbance``, ``perception``,
            ``executor``, ``surprise``, ``guard``, ``gate``, ``prediction``, ``surroundings``
        :param stopwatch_ns: a clock, to add the real time of inference to the latency
        """
        cv2.setNumThreads(1)  # its threads would be missing in copies of the process: see run_each
        self.policy = policy
        self.latency = latency or LatencyModel()
        self.config = config or LoopConfig()
        self._parts = dict(parts or {})
        self._stopwatch_ns = stopwatch_ns
        self._robot = robots.load('panda')
        self._camera = cameras.load(robots.config_dir() / 'cameras' / f'{self.config.camera}.yaml')
        self._world = World(task, self._robot, self._parts.get('world'))
        self._renderer = Renderer(self._camera, self._robot, self.config.image_noise)
        self._kinematics = Kinematics(self._robot)

    def run(
        self,
        seed: int,
        strategy: Strategy,
        watch: Callable[[Frame], None] | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> EpisodeResult:
        """
        Run one episode.

        :param seed: of scene, noise, latency and policy
        :param strategy: used as it is: what it learns in the episode stays in it
        :param parts: instead of those given at first, all but ``world``
        """
        return _Episode(self, seed, strategy, watch, {**self._parts, **(parts or {})}).run()

    def run_each(
        self, seed: int, runs: Sequence[tuple[Strategy, Mapping[str, Any]]]
    ) -> list[EpisodeResult]:
        """
        Run one seed with several strategies, each with its parts, as :meth:`run` would.

        What comes before the start, a third of the work, is done once: each strategy goes on from
        there in a copy of this process, and learns nothing that is kept.

        :raises ConfigError: parts that differ in more than ``executor`` and ``surprise``
        """
        merged = [(strategy, {**self._parts, **parts}) for strategy, parts in runs]
        shared = [
            {name: part for name, part in parts.items() if name not in ('executor', 'surprise')}
            for _, parts in merged
        ]
        if any(parts != shared[0] for parts in shared):
            raise ConfigError(f'parts {shared}: these begin differently')
        episode = _Episode(self, seed, merged[0][0], None, merged[0][1])
        for strategy, parts in merged[1:]:
            episode.add(strategy, parts)
        episode.prepare()
        return [forked(partial(episode.finish_with, number)) for number in range(len(merged))]

    def calibrate(
        self, strategy: Strategy, seeds: range, parts: Mapping[str, Any] | None = None
    ) -> Strategy:
        """
        Return a copy of a strategy that has seen some episodes, for those that learn online.

        Nothing disturbs these: they are to show what is normal.
        """
        prepared = copy.deepcopy(strategy)
        for seed in seeds:
            self.run(seed, prepared, None, {**(parts or {}), 'disturbance': None})
        return prepared

    def close(self) -> None:
        """Free both physics clients."""
        self._world.close()
        self._renderer.close()


class _Episode:
    """The state of one episode."""

    def __init__(
        self,
        loop: Loop,
        seed: int,
        strategy: Strategy,
        watch: Callable[[Frame], None] | None,
        parts: Mapping[str, Any],
    ) -> None:
        self._loop, self._seed, self._watch = loop, seed, watch
        self._world, self._space = loop._world, loop.policy.spec.space
        self._world.disturb(parts.get('disturbance'))
        self._task: Task = self._world.reset(seed)
        self._offset_ns = START_NS - self._world.time_ns
        prediction: Prediction | None = parts.get('prediction')
        self._prediction = None
        if prediction is not None:
            self._prediction = VirtualPrediction(loop._robot, prediction, self._space)
        self._guard = Guard(
            loop._robot,
            parts.get('guard'),
            gate=parts.get('gate'),
            checks={'chunk_verdict': ChunkVerdict.Config(require=prediction is not None)},
        )
        self._guard.set_space(self._space, loop.policy.spec.dt_s, loop.policy.spec.name)
        self._guard.tell_of_chunks(parts.get('witness'))
        self._perception = Perception(
            loop._robot, {loop._camera.name: loop._camera}, parts.get('perception')
        )
        self._executors = [self._make_executor(strategy, parts)]
        loop.policy.reset(seed)
        loop.latency.reset(seed)
        self._inference = VirtualInference(loop.policy, loop.latency, SESSION, loop._stopwatch_ns)
        self._noise = np.random.default_rng((seed, 2))
        self._images: deque[tuple[int, Image]] = deque()
        self._camera_ns = self._observe_ns = START_NS
        self._observation: Observation | None = None
        self._status: GuardStatus | None = None
        self._verdict: SafetyVerdict | None = None
        self._sent: list[F64] = []
        self._touched: set[str] = set()
        self._surround(parts.get('surroundings'))
        self._reactions: Counter[str] = Counter()
        self._notes: list[str] = []
        self._running = False

    def _surround(self, surroundings: Surroundings | None) -> None:
        """Put obstacles into the world, and let guard and prediction know of them."""
        self._obstacles: tuple[Obstacle, ...] = ()
        self._held_size, self._holding = None, False
        if surroundings is None:
            return
        self._obstacles = tuple(surroundings.make(self._world, self._seed))
        self._world.place(self._obstacles)
        if surroundings.known:
            self._held_size = surroundings.held
            self._tell_obstacles(self._obstacles)

    def _tell_held(self, seen: Observation) -> None:
        """Tell of what is carried, when it is taken up and when it is let go."""
        if self._held_size is None or not seen.objects:
            return
        thing = seen.objects[0]
        holding = thing.status is ObjectStatus.HELD
        if holding == self._holding:
            return
        self._holding = holding
        held: tuple[Obstacle, ...] = ()
        if holding:
            tool = seen.vector(('ee.x', 'ee.y', 'ee.z')).astype(np.float64)
            place = self._loop._kinematics.tool_rotation.T @ (thing.position - tool)
            turn = np.array([0.0, 0.0, 0.0, 1.0])
            held = (Obstacle(thing.name, Shape.BOX, self._held_size, place, turn, TOOL),)
        self._tell_obstacles((*self._obstacles, *held))

    def _tell_obstacles(self, obstacles: tuple[Obstacle, ...]) -> None:
        self._guard.on_obstacles(ObstacleList(START_NS, obstacles, lasting=True), START_NS)
        if self._prediction is not None:
            self._prediction.set_obstacles(obstacles)

    def _make_executor(self, strategy: Strategy, parts: Mapping[str, Any]) -> Executor:
        loop = self._loop
        executor = Executor(
            strategy,
            parts.get('executor'),
            loop._robot,
            SESSION,
            monitor(parts.get('surprise')),
        )
        executor.configure(loop.policy.spec)
        history = loop.latency.history(loop.config.known_delays, self._seed)
        executor.remember_delays(
            CONTROL_DT_S * math.ceil(delay / CONTROL_DT_S - 1e-6) for delay in history
        )
        return executor

    def add(self, strategy: Strategy, parts: Mapping[str, Any]) -> None:
        """Let another executor look on, which may be the one that :meth:`finish_with` takes."""
        self._executors.append(self._make_executor(strategy, parts))

    def finish_with(self, number: int) -> EpisodeResult:
        """Run from the start on with one of the executors."""
        self._executors = [self._executors[number]]
        return self.finish()

    def run(self) -> EpisodeResult:
        """Run all of it."""
        self.prepare()
        return self.finish()

    def finish(self) -> EpisodeResult:
        """Run from the start on."""
        started_ns = self._now_ns
        self._running = True
        episode_id = f'seed-{self._seed}'
        self._executor.set_episode(True, self._task.id, started_ns, episode_id)
        self._guard.set_episode(True, episode_id, self._task.id)
        timeout_ns = started_ns + nanoseconds(self._world.definition.timeout_s)
        success = False
        while not success and self._now_ns < timeout_ns:
            self._tick()
            success = bool(self._sent) and self._world.success()
        if not success:
            self._note('time-out')
        return self._result(success, seconds(self._now_ns - started_ns))

    @property
    def _executor(self) -> Executor:
        return self._executors[0]

    @property
    def _now_ns(self) -> int:
        return self._world.time_ns + self._offset_ns

    def prepare(self) -> None:
        """Arm, and wait until perception knows what the policy needs, as task_node does."""
        self._perception.on_task(self._task)
        for _ in range(round(WARM_UP_S / CONTROL_DT_S)):
            self._tick()
            if self._ready():
                return
        seen = self._observation
        self._note(f'perception not ready: {seen.health_reason if seen else "no observation"}')

    def _ready(self) -> bool:
        seen = self._observation
        if seen is None or seen.health is Health.BAD:
            return False
        inputs = seen.vector(self._loop.policy.spec.input_names)
        status = self._status
        if status is None or status.state is not ArmState.ARMED:
            done, reason = self._guard.arm(self._now_ns)
            if not done:
                self._note(f'arm: {reason}')
            return False
        return not status.ramping and bool(np.all(np.isfinite(inputs)))

    def _tick(self) -> None:
        now_ns = self._now_ns
        state = replace(self._world.joint_state(), stamp_ns=now_ns)
        self._guard.on_joint_state(state, now_ns)
        self._perceive(state, now_ns)
        self._receive(now_ns)
        for verdict in self._prediction.due(now_ns) if self._prediction else ():
            self._guard.on_chunk_verdict(verdict, now_ns)
            for executor in self._executors:
                executor.judged(verdict, now_ns)
        tick = self._execute(state, now_ns)
        if tick.request is not None:
            self._inference.request(tick.request, now_ns)
            self._receive(now_ns)
        if tick.command is not None:
            self._guard.on_command(tick.command, now_ns)
        answer = self._guard.tick(now_ns, now_ns, tick.command is None)
        self._status, self._verdict = answer.status, answer.verdict
        for executor in self._executors:
            executor.set_speed_scale(answer.speed_scale)
            for event in answer.events:
                if event.kind == 'replan':
                    executor.replan(event, now_ns)
            if answer.status_changed:
                executor.set_guard(answer.status, now_ns)
        if self._running:
            self._reactions[answer.verdict.reaction.name] += 1
            for event in answer.events:
                self._note(f'guard {event.kind}: {event.reason}')
            if tick.command is not None and answer.positions is not None:
                self._sent.append(answer.positions)
        self._world.step(answer.positions)
        if self._running:
            self._touched |= self._world.touched()
        self._show(now_ns, answer.positions)

    def _execute(self, state: JointState, now_ns: int) -> Tick:
        measured = None
        for executor in self._executors:
            if measured is None and executor.running:
                measured = spaces.from_joints(self._space, self._loop._kinematics, state)
            tick = executor.tick(now_ns, measured, now_ns)
        return tick

    def _perceive(self, state: JointState, now_ns: int) -> None:
        config = self._loop.config
        self._perception.on_joint_state(state)
        if now_ns >= self._camera_ns:
            self._camera_ns += nanoseconds(1.0 / config.camera_hz)
            scene = replace(self._world.scene(), stamp_ns=now_ns)
            image = self._loop._renderer.render(scene, self._noise)
            self._images.append((now_ns + nanoseconds(config.image_latency_s), image))
        while self._images and self._images[0][0] <= now_ns:
            self._perception.on_image(self._images.popleft()[1])
        if now_ns >= self._observe_ns:
            self._observe_ns += nanoseconds(1.0 / config.observation_hz)
            self._perception.on_task(self._world.task)  # its goal may have moved
            seen = self._perception.observe(now_ns)
            if seen is not None:
                self._observation = seen
                self._tell_held(seen)
                for executor in self._executors:
                    executor.observe(seen, now_ns)
                self._guard.on_observation(seen, now_ns)

    def _receive(self, now_ns: int) -> None:
        for chunk in self._inference.work(self._observation, now_ns):
            self._guard.on_chunk(chunk, now_ns)
            if self._prediction is not None and self._verdict is not None:
                self._prediction.take(chunk, self._verdict, now_ns)
            reason = self._executor.receive(chunk, now_ns)
            if reason is not None:
                self._note(f'chunk refused: {reason}')

    def _show(self, now_ns: int, sent: F64 | None) -> None:
        if self._watch is not None:
            self._watch(Frame(now_ns, self._observation, sent, self._guard.executed()))

    def _note(self, text: str) -> None:
        if len(self._notes) < NOTES:
            self._notes.append(text)

    def _result(self, success: bool, duration_s: float) -> EpisodeResult:
        stats = self._executor.stats()
        arm = len(self._loop._robot.arm_joints)
        path = [self._loop._kinematics.forward(joints[:arm]).position for joints in self._sent]
        peak, rms = jerk(np.array(path).reshape(-1, 3), CONTROL_DT_S)
        for problem in self._inference.problems:
            self._note(problem)
        return EpisodeResult(
            seed=self._seed,
            success=success,
            duration_s=duration_s,
            unanswered=len(self._inference.problems),
            peak_jerk=peak,
            rms_jerk=rms,
            disturbances=self._world.disturbances,
            touched=tuple(sorted(self._touched)),
            interrupts=self._executor.interrupts,
            reactions=dict(sorted(self._reactions.items())),
            notes=tuple(self._notes),
            **{name: getattr(stats, name) for name in _COUNTED},
        )


_COUNTED = (
    'policy_calls',
    'executed_rows',
    'discarded_rows',
    'late_rows',
    'mean_horizon',
    'base_horizon',
    'ticks',
    'starved_ticks',
    'chunks_accepted',
    'chunks_rejected',
    'cuts',
    'merges',
    'largest_merge_step',
    'observation_age_p50_s',
    'observation_age_p99_s',
    'first_action_s',
)
