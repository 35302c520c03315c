"""
The order of things in a run of episodes, as one generator that is resumed by a timer.

Per episode: everybody is ready, guard disarmed, simulator reset, task announced, guard armed
explicitly, arm at home, START, watch, outcome, END. Nothing here waits: services are asked for by
effects, answers come back by :meth:`Run.answer`, and every wait has a time-out with its reason.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
import math

from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError, InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.runs.world import World
from chunkpilot_core.types import ArmState, EpisodeOutcome, nanoseconds, seconds, Task

Wait = Generator[None, None, None]

STEADY_NODES = ('sim', 'guard', 'perception')
"""Who sends all the time, each after those whose messages it lives on."""
UNANSWERED = 3
"""Statistics in a row, one a second, with starved ticks and without a new chunk."""
DOUBT_S = 20.0
"""[s] For so long a policy that did not answer is expected to announce itself anew."""
STATS_S = 1.5
"""[s] Statistics of the execution, which come once a second, are no older than this."""
MAX_SEED = 2**64 - 1
"""Seeds travel as uint64."""
NO_RECORDER = 'record: no recorder is there'
"""How a run is refused; whoever has just started one asks again."""
STALL_S = 0.3
"""[s] A pause between two ticks that means that this process did not get the CPU."""


@dataclass(frozen=True)
class RunConfig:
    """How patient a run is."""

    ready_timeout_s: float = option(
        60.0, 'time in which every node must be ready', unit='s', min=0.1, max=600.0
    )
    service_timeout_s: float = option(
        3.0, 'time in which a service must answer', unit='s', min=0.1, max=60.0
    )
    arm_timeout_s: float = option(
        10.0,
        'time in which guard and simulator must agree to arm and reset',
        unit='s',
        min=0.1,
        max=60.0,
    )
    move_timeout_s: float = option(
        15.0, 'time in which the arm must reach its start pose', unit='s', min=0.1, max=120.0
    )
    observation_timeout_s: float = option(
        5.0, 'time in which perception must have seen the new scene', unit='s', min=0.1, max=60.0
    )
    hold_grace_s: float = option(
        1.0, 'a hold of the guard that lasts longer aborts', unit='s', min=0.0, max=60.0
    )
    first_command_s: float = option(
        4.0,
        'time after the start of an episode in which the first command must be executed',
        unit='s',
        min=2.0,
        max=600.0,
    )
    silence_s: float = option(
        1.0,
        'a node that sends all the time and is silent for longer is dead',
        unit='s',
        min=0.1,
        max=60.0,
    )
    home_tolerance_rad: float = option(
        0.02, 'joints nearer to home than this need no move', unit='rad', min=0.001, max=1.0
    )
    commands_from: str = option(
        'execution',
        'who is expected to drive: chunks, or somebody at teleop_node, who may take his time',
        choices=('execution', 'teleop'),
    )
    linger_s: float = option(
        0.0,
        'an episode goes on so long after the task is solved, and has to stay solved',
        unit='s',
        min=0.0,
        max=60.0,
    )
    max_failed_starts: int = option(
        3,
        'episodes in a row that could not be started, after which a run gives up',
        min=1,
        max=100,
    )


@dataclass(frozen=True, slots=True)
class Call:
    """Effect: call a service and hand the answer to :meth:`Run.answer`."""

    number: int
    service: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Announce:
    """Effect: publish the task in force."""

    task: Task


@dataclass(frozen=True, slots=True)
class Start:
    """Effect: publish that an episode starts."""

    episode_id: str
    task: Task
    seed: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Effect: publish outcome and end of an episode; ``started``: whether START went out."""

    episode_id: str
    task: Task
    seed: int
    outcome: EpisodeOutcome
    reason: str
    duration_s: float
    started: bool = True


Effect = Call | Announce | Start | Finish


class NotPossibleError(ChunkpilotError):
    """Something that an episode needs did not come about; the message says what and why."""


def check_request(episodes: int, seed: int, timeout_s: float) -> None:
    """
    Check what is asked of a run.

    :param timeout_s: [s] per episode; 0 = the task's
    :raises InvalidDataError: with what is wrong, and what is allowed
    """
    if episodes < 1:
        raise InvalidDataError(f'episodes is {episodes}, must be at least 1')
    if seed < 0 or seed + episodes - 1 > MAX_SEED:
        raise InvalidDataError(
            f'seed is {seed}: the seeds of {episodes} episodes, +1 each, must be 0 to 2**64 - 1'
        )
    if not (math.isfinite(timeout_s) and timeout_s >= 0.0):
        raise InvalidDataError(
            f"timeout is {timeout_s:g} s, must be finite and at least 0 (0: the task's)"
        )


class Run:
    """Some episodes of one task in a row; :meth:`tick` it some ten times a second."""

    def __init__(
        self,
        config: RunConfig,
        robot: Robot,
        world: World,
        run_id: str,
        task_kind: str,
        episodes: int,
        seed: int,
        timeout_s: float,
    ) -> None:
        """
        Prepare a run.

        :param world: filled by the caller
        :param run_id: begins every episode's id
        :param seed: of the first episode, +1 each
        :param timeout_s: [s] of ROS time per episode
        """
        self.config, self.robot, self.world = config, robot, world
        self.run_id, self.task_kind = run_id, task_kind
        self.episodes, self.seed, self.timeout_s = episodes, seed, timeout_s
        self.episode = 0
        self.phase = 'waiting'
        self.outcome = EpisodeOutcome.UNKNOWN
        self.finished: list[Finish] = []
        self.failure = ''
        self.done = False
        self._now_ns = self._steady_ns = self._started_ns = 0
        self._trusting_until_ns = 0
        self._cancelled = False
        self._calls = 0
        self._answers: dict[int, tuple[bool, str, Task | None]] = {}
        self._effects: list[Effect] = []
        self._generator = self._run()

    @property
    def episode_id(self) -> str:
        """Id of the episode in progress."""
        return f'{self.run_id}-{self.episode + 1:03d}'

    @property
    def elapsed_s(self) -> float:
        """How long the episode in progress has run [s]."""
        return seconds(self._now_ns - self._started_ns) if self.phase == 'running' else 0.0

    def tick(self, now_ns: int, steady_ns: int) -> list[Effect]:
        """
        Go on as far as possible.

        :param now_ns: ROS time, which may stand still when the simulator is dead
        :param steady_ns: steady clock
        :returns: what the caller has to do now, in this order
        """
        if steady_ns - self._steady_ns > nanoseconds(STALL_S):
            # Who was asleep must not take its own silence for that of others.
            self._trusting_until_ns = steady_ns + nanoseconds(self.config.silence_s)
        self._now_ns, self._steady_ns = now_ns, steady_ns
        if not self.done:
            try:
                next(self._generator)
            except StopIteration:
                self.done = True
        effects, self._effects = self._effects, []
        return effects

    def answer(self, number: int, success: bool, message: str, task: Task | None = None) -> None:
        """Hand in the answer to a :class:`Call`."""
        self._answers[number] = (success, message, task)

    def cancel(self) -> None:
        """End the run at the next tick: the episode in progress is aborted, the guard disarmed."""
        self._cancelled = True

    # ---- the order of things --------------------------------------------------------------------

    def _run(self) -> Wait:
        failed = 0
        for index in range(self.episodes):
            self.episode = index
            yield from self._episode()
            last = self.finished[-1]
            failed = 0 if last.started else failed + 1
            if self._cancelled:
                self.failure = 'cancelled'
                break
            if failed >= self.config.max_failed_starts:
                self.failure = f'{failed} episodes in a row could not be started: {last.reason}'
                break
        try:
            yield from self._disarm()
        except NotPossibleError as error:
            self.failure = self.failure or f'the guard stays as it is: {error}'
        self.phase = 'done'

    def _episode(self) -> Wait:
        seed = self.seed + self.episode
        task = Task('', self.task_kind)
        started = False
        try:
            self.phase = 'waiting'
            yield from self._until(self._unready, self.config.ready_timeout_s)
            self.phase = 'resetting'
            yield from self._disarm()
            yield from self._clear_driver()
            task = yield from self._reset(seed)
            self._effects.append(Announce(task))
            self.phase = 'arming'
            yield from self._arm()
            self.phase = 'moving'
            yield from self._go_home()
            yield from self._until(lambda: self._blind(task), self.config.observation_timeout_s)
            self._started_ns, started = self._now_ns, True
            self.phase = 'running'
            self._effects.append(Start(self.episode_id, task, seed))
            outcome, reason = yield from self._watch()
        except NotPossibleError as error:
            outcome, reason = EpisodeOutcome.ABORTED, str(error)
        duration_s = seconds(self._now_ns - self._started_ns) if started else 0.0
        end = Finish(self.episode_id, task, seed, outcome, reason, duration_s, started)
        self.phase, self.outcome = 'done', outcome
        self.finished.append(end)
        self._effects.append(end)
        yield

    def _disarm(self) -> Wait:
        """Bring the guard to DISARMED from wherever it is; its refusal is passed on."""
        deadline = self._deadline(self.config.arm_timeout_s)
        while not self._is(ArmState.DISARMED):
            latched = self.world.state in (ArmState.STOPPED, ArmState.ESTOP)
            service = 'guard/reset' if latched else 'guard/disarm'
            success, message, _ = yield from self._call(service)
            # It decelerates first.
            patience = self._deadline(1.0 if success else 0.3)
            while not self._is(ArmState.DISARMED) and self._steady_ns < patience:
                yield
            if self._steady_ns > deadline:
                raise NotPossibleError(f'{service}: {message}')

    def _clear_driver(self) -> Wait:
        """Let the driver take commands again, which the watchdog has stopped for a dead guard."""
        if self.world.driver_stopped:
            success, message, _ = yield from self._call('driver/clear')
            if not success:
                raise NotPossibleError(f'driver/clear: {message}')

    def _reset(self, seed: int) -> Generator[None, None, Task]:
        # The simulator may hear later than we do that the guard is disarmed.
        _, _, task = yield from self._insist('sim/reset', seed)
        if task is None:
            raise NotPossibleError('sim/reset: no task in the answer')
        # The simulator counts anew after a restart; a task's id must never come back.
        return replace(task, id=f'{task.kind}-{seed}-{self.episode_id}')

    def _arm(self) -> Wait:
        yield from self._insist('guard/arm')
        yield from self._until(
            lambda: (
                '' if self.world.state is ArmState.ARMED else 'guard/arm: the guard did not follow'
            ),
            self.config.service_timeout_s,
        )

    def _go_home(self) -> Wait:
        names, home = self.robot.arm_joints, self.robot.home
        if self.world.away_from(names, home) < self.config.home_tolerance_rad:
            return
        success, message, _ = yield from self._call('guard/move_to')
        if not success:
            raise NotPossibleError(f'guard/move_to: {message}')
        yield from self._until(self._on_the_way, self.config.move_timeout_s)

    def _watch(self) -> Generator[None, None, tuple[EpisodeOutcome, str]]:
        sessions = self.world.sessions()
        held_ns: int | None = None
        solved_s: float | None = None
        begun_ns = self._steady_ns
        while True:
            yield
            trouble = self._trouble(sessions)
            if trouble:
                return EpisodeOutcome.ABORTED, trouble
            if not (self.world.success and self.world.scene_ns > self._started_ns):
                solved_s = None
            elif solved_s is None:
                solved_s = self.elapsed_s
            if solved_s is not None and self.elapsed_s - solved_s >= self.config.linger_s:
                return EpisodeOutcome.SUCCESS, 'the task is solved'
            over = self.elapsed_s > self.timeout_s
            patience_s = STATS_S if over else self.config.first_command_s
            watched_s = seconds(self._steady_ns - begun_ns)
            if watched_s > patience_s and (idle := self._idle(watched_s)):
                return EpisodeOutcome.ABORTED, idle
            if over and solved_s is None:
                return EpisodeOutcome.FAILURE, f'not solved within {self.timeout_s:g} s'
            if self.world.state is not ArmState.HOLD:
                held_ns = None
            elif held_ns is None:
                held_ns = self._steady_ns
            elif seconds(self._steady_ns - held_ns) > self.config.hold_grace_s:
                return EpisodeOutcome.ABORTED, self._guarded('holds')

    # ---- what it looks at -----------------------------------------------------------------------

    def _unready(self) -> str:
        """Return what an episode still has to wait for, '' for nothing."""
        world = self.world
        for node in STEADY_NODES:
            if world.silent_s(node, self._steady_ns) > self.config.silence_s:
                return f'{node} is not heard of'
        if world.guard is None:
            return 'the guard has not told its state'
        if world.doubted_ns and self._steady_ns - world.doubted_ns > nanoseconds(DOUBT_S):
            world.policy_ready, world.doubted_ns = True, 0  # perhaps it was only slow: try again
        if not world.policy_ready:
            return f'the policy is not ready: {world.policy_state}'
        driver = self.config.commands_from
        if driver not in world.heard or self._silent_driver():
            return f'{driver} is not heard of'
        return ''

    def _blind(self, task: Task) -> str:
        """Return why perception is not yet there for a task, '' if it is."""
        if self.world.observed_task != task.id:
            return 'perception has not taken over the task'
        return self.world.observation_bad

    def _on_the_way(self) -> str:
        guard = self.world.guard
        if guard is None or guard.state is not ArmState.ARMED:
            raise NotPossibleError(f'guard/move_to: {self._causes()}')
        # Not by guard.at_target: it may still speak of the move before.
        away = self.world.away_from(self.robot.arm_joints, self.robot.home)
        if not guard.moving and away < self.config.home_tolerance_rad:
            return ''
        return f'guard/move_to: the arm is {away:.3f} rad from home'

    def _trouble(self, sessions: dict[str, int]) -> str:
        """Return what makes going on with an episode pointless, '' for nothing."""
        if self._cancelled:
            return 'cancelled'
        world = self.world
        for node, session in world.sessions().items():
            if sessions.get(node, session) != session:
                return f'{node} was started again'
        if self._steady_ns > self._trusting_until_ns and (dead := self._dead()):
            return dead
        if world.unanswered >= UNANSWERED:
            world.doubt_policy(self._steady_ns)
            return f'the policy does not answer: starved for {UNANSWERED} s'
        if world.state not in (ArmState.ARMED, ArmState.HOLD):
            return self._guarded(f'is {world.state.name if world.state else "unknown"}')
        return ''

    def _idle(self, watched_s: float) -> str:
        """Return why nothing was executed in this episode, '' if something was."""
        if self.config.commands_from == 'teleop':
            return ''  # a human is not hurried
        stats = self.world.stats_of(self.episode_id)
        if stats is not None and (stats.ticks or stats.executed_rows):
            return ''
        why = "execution asks for no chunk; its log says whether the policy can't be executed"
        if stats is not None and stats.chunks_rejected:
            why = f'execution refused {stats.chunks_rejected} chunks; its log says why'
        elif stats is not None and stats.policy_calls and not stats.chunks_accepted:
            why = f'the policy answered none of {stats.policy_calls} requests'
            self.world.doubt_policy(self._steady_ns)
        elif stats is not None and stats.policy_calls:
            why = f'none of {stats.chunks_accepted} chunks came to run'
        return f'nothing was executed within {watched_s:.1f} s: {why}'

    def _dead(self) -> str:
        """Return who has been silent for too long, '' for nobody."""
        silent_s = max(self.world.silent_s(node, self._steady_ns) for node in STEADY_NODES)
        if silent_s > self.config.silence_s:
            return self._first_silent()
        return f'{self.config.commands_from} is dead: silent' if self._silent_driver() else ''

    def _first_silent(self) -> str:
        """
        Return the first who is silent, '' for nobody.

        One that lives on the messages of another falls silent with it, or stops for it: the guard
        stops for a dead simulator, and it is the simulator that has to be named.
        """
        for node in STEADY_NODES:
            silent_s = self.world.silent_s(node, self._steady_ns)
            if silent_s > 0.5 * self.config.silence_s:
                return f'{node} is dead: silent for {silent_s:.1f} s'
        return ''

    def _guarded(self, what: str) -> str:
        """Return what the guard does, why, and what is behind that."""
        text = f'the guard {what}: {self._causes()}'
        root = self._first_silent()
        return f'{root}; {text}' if root else text

    def _is(self, state: ArmState) -> bool:
        return self.world.state is state

    def _silent_driver(self) -> bool:
        silent_s = self.world.silent_s(self.config.commands_from, self._steady_ns)
        return silent_s > STATS_S + self.config.silence_s

    def _causes(self) -> str:
        guard = self.world.guard
        return '; '.join(guard.causes) or 'no cause given' if guard else 'not heard of'

    # ---- waiting without blocking ---------------------------------------------------------------

    def _call(
        self, service: str, seed: int = 0
    ) -> Generator[None, None, tuple[bool, str, Task | None]]:
        self._calls += 1
        number = self._calls
        self._effects.append(Call(number, service, seed))
        deadline = self._deadline(self.config.service_timeout_s)
        while number not in self._answers:
            if self._steady_ns > deadline:
                return False, f'no answer within {self.config.service_timeout_s:g} s', None
            yield
        return self._answers.pop(number)

    def _insist(
        self, service: str, seed: int = 0
    ) -> Generator[None, None, tuple[bool, str, Task | None]]:
        """Call a service until it agrees; its last refusal is passed on."""
        deadline = self._deadline(self.config.arm_timeout_s)
        while True:
            answer = yield from self._call(service, seed)
            if answer[0]:
                return answer
            if self._steady_ns > deadline or self._cancelled:
                raise NotPossibleError(f'{service}: {answer[1]}')
            yield from self._pause(0.2)

    def _until(self, what_is_missing: Callable[[], str], timeout_s: float) -> Wait:
        deadline = self._deadline(timeout_s)
        while missing := what_is_missing():
            if self._cancelled:
                raise NotPossibleError('cancelled')
            if self._steady_ns > deadline:
                raise NotPossibleError(f'{missing} (waited {timeout_s:g} s)')
            yield

    def _pause(self, duration_s: float) -> Wait:
        deadline = self._deadline(duration_s)
        while self._steady_ns < deadline:
            yield

    def _deadline(self, duration_s: float) -> int:
        return self._steady_ns + nanoseconds(duration_s)
