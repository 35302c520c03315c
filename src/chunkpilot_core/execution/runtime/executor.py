"""
Runs chunks: the queue, plan time, requests, merges and starvation that every strategy stands on.

Rows are keyed by plan time, which slows with the guard and stops while nothing runs; what ran
since the observation is late and skipped, nothing else is; a new chunk takes over at its next row
boundary; a request leaves when what remains is what an answer takes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
import math

from chunkpilot_core import spaces
from chunkpilot_core.errors import ChunkpilotError, InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime import admission
from chunkpilot_core.execution.runtime.gate import Change, Gate
from chunkpilot_core.execution.runtime.motion import Columns, Motion
from chunkpilot_core.execution.runtime.plan import late_rows, lay
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.scheduler import Scheduler
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.execution.runtime.stats import Counters, Recorder, Trace
from chunkpilot_core.robot import Robot
from chunkpilot_core.timing import Pacer
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    Command,
    ExecutionStats,
    F32,
    F64,
    GuardStatus,
    HorizonDecision,
    Id,
    nanoseconds,
    Observation,
    PolicySpec,
    seconds,
)
import numpy as np

LATE_TICK_S = 0.005
LONGEST_TICK = 3  # periods that plan time moves by after a stall, so that no path is jumped over


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick wants sent; ``decision`` is a horizon decision not yet published."""

    command: Command | None = None
    request: ChunkRequest | None = None
    decision: HorizonDecision | None = None


class Executor:
    """One robot's execution; told the time by its caller, who ticks it at the control rate."""

    Config = ExecutionConfig

    def __init__(
        self,
        strategy: Strategy,
        config: ExecutionConfig | None = None,
        robot: Robot | None = None,
        session: int = 1,
    ) -> None:
        """
        Make an executor; :meth:`configure` tells it the policy.

        :param robot: caps how old the observation behind a row may be
        :param session: id of this run, random where several may meet
        """
        self.strategy = strategy
        self.config = config or ExecutionConfig()
        self._max_age_s = robot.max_row_age_s if robot else math.inf
        self._session = session
        self._scheduler = Scheduler(strategy, self.config, session)
        self._gate = Gate()
        self._pacer = Pacer(self.config.period_s)
        self._spec: PolicySpec | None = None
        self._policy_session = 0
        self._serving = False
        self._scale = 1.0
        self._now_ns: int | None = None
        self._commands = 0
        self._count = Counters()

    def configure(self, spec: PolicySpec | None, session: int = 0) -> None:
        """
        Work with a policy from now on, or with none until further notice.

        Requests under way are dropped unless the same process serves on: a new one did not get
        them, and its first answer may be a cold one.

        :param session: of the process that serves the policy
        :raises CapabilityError: the policy does not offer what the strategy needs
        :raises ConfigError: the strategy's configuration does not fit the policy
        """
        was_serving, self._serving = self._serving, False
        if spec is None:
            self._scheduler.requests.drop()
            return
        self.strategy.configure(spec)
        self._serving = True
        old, self._spec = self._spec, spec
        same_space = old is not None and old.space == spec.space
        if not same_space:
            self._lay_out(spec)
        if not (was_serving and same_space and session == self._policy_session):
            self._scheduler.requests.drop()
            self._scheduler.delays.restart()
        self._policy_session = session

    def _lay_out(self, spec: PolicySpec) -> None:
        config = self.config
        columns = Columns(spec.space, config.reanchor_m, config.reanchor_rad)
        motion = Motion(spec.space, columns, config.stop_acceleration)
        self._queue = PlanQueue(spec.space, self.strategy, motion, config)
        self._queue.count = self._count
        self._recorder = Recorder(config.trace_ticks, spec.space.target_size)
        if self._now_ns is not None:
            self._queue.reset_clock(self._now_ns)

    def remember_delays(self, delays_s: Iterable[float]) -> None:
        """
        Take delays from request to answer that were measured earlier with this policy.

        Call it after :meth:`configure`, which takes the next answer for a cold one.
        """
        self._scheduler.delays.remember(delays_s)

    @property
    def running(self) -> bool:
        """Whether guard, episode and task allow motion; else a tick needs no measured pose."""
        return self._gate.open

    def set_guard(self, status: GuardStatus, now_ns: int) -> None:
        """Follow the guard: commands only while it is armed, everything anew after a re-arm."""
        change = self._gate.guard(status, now_ns)
        self._apply(change, 'guard: armed' if self._commands else 'start', now_ns)

    def set_episode(self, running: bool, task_id: str, now_ns: int, episode_id: str = '') -> None:
        """
        Start or end an episode; a new task within one drops what was planned for the old.

        :param task_id: task in force; an episode without one does not run
        """
        change = self._gate.episode(running, task_id, now_ns, episode_id)
        self._apply(change, 'task' if change is Change.DROP else 'start', now_ns)
        if change is not Change.RESTART or not self._gate.task_id:
            return
        self._count = Counters(since_ns=now_ns, episode_id=episode_id)
        self._scheduler.requests.timeouts = 0
        if self._spec is not None:
            self._queue.count = self._count
            self._queue.motion.reanchors = 0
            self._recorder.clear()

    def _apply(self, change: Change, reason: str, now_ns: int) -> None:
        if change is Change.NONE:
            return
        self._scheduler.restart(reason)
        if self._spec is not None:
            self._queue.drop(now_ns, forget=change is Change.RESTART)

    def set_speed_scale(self, scale: float) -> None:
        """
        Let plan time pass at a fraction of full speed.

        :raises InvalidDataError: not in 0 to 1
        """
        if not 0.0 <= scale <= 1.0:
            raise InvalidDataError(f'speed scale {scale}, allowed 0 to 1')
        self._scale = scale

    def observe(self, observation: Observation, now_ns: int) -> None:
        """Take the newest observation; per-row correctors see it."""
        if self._spec is not None:
            self._queue.observation = observation

    def cut(self, reason: str, now_ns: int) -> bool:
        """
        End the horizon in force as soon as an answer can be there, and ask for one at once.

        A request under way is superseded: its observation is older than what was seen.

        :param reason: published, e.g. ``'surprise: object moved 3 cm'``
        :returns: whether there was a horizon to cut
        """
        plan = self._queue.last if self._spec else None
        if plan is None or plan.decision.cut:
            return False
        wait_ns = round(self._queue.clock.slope * nanoseconds(self._scheduler.delays.value_s))
        stop = late_rows(plan.chunk, plan.start_ns, self._queue.plan_at(now_ns) + wait_ns)
        self._queue.shorten(plan, min(stop, plan.stop), reason)
        self._count.cuts += 1
        self._gate.not_before_ns = max(self._gate.not_before_ns, now_ns)
        self._scheduler.restart(reason, urgent=True)
        return True

    def receive(self, chunk: ActionChunk, now_ns: int) -> str | None:
        """
        Take a chunk and decide its horizon.

        :returns: why it is refused, or None
        """
        reason = self._foreign(chunk)
        if reason is None:
            found = self._scheduler.requests.find(chunk.request_id)
            reason = found if isinstance(found, str) else self._admit(chunk, found, now_ns)
        self._count.chunks_rejected += reason is not None
        return reason

    def _foreign(self, chunk: ActionChunk) -> str | None:
        if self._spec is None or self._gate.status is None:
            return 'nothing was asked for yet'
        for what, got, expected in (
            ('session', chunk.request_id.session, self._session),
            ('arm epoch', chunk.arm_epoch, self._gate.arm_epoch),
            ('task', chunk.task_id, self._gate.task_id),
        ):
            if got != expected:
                return f'it is for {what} {got!r}, in force is {expected!r}'
        return None

    def _admit(self, chunk: ActionChunk, request: ChunkRequest, now_ns: int) -> str | None:
        spec, running = self._spec, self._queue.last
        assert spec is not None
        newest_ns = running.chunk.observation_stamp_ns if running else 0
        reason = admission.refusal(chunk, request, spec, now_ns, newest_ns)
        if reason is None:
            reason = self._plan(chunk, spec, now_ns)
        if reason is None:
            self._scheduler.accepted(request, now_ns)
        else:
            self._scheduler.refused(request, now_ns)
        return reason

    def _plan(self, chunk: ActionChunk, spec: PolicySpec, now_ns: int) -> str | None:
        """Decide the horizon of a valid chunk and queue it, or say why it comes too late."""
        queue = self._queue
        wanted_s = chunk.max_row_age_s or spec.max_row_age_s or chunk.horizon * chunk.dt_s + 0.5
        max_age_s = min(wanted_s, self._max_age_s)
        age_s = seconds(now_ns - chunk.observation_stamp_ns)
        if age_s > max_age_s:
            return f'its observation is {age_s:.3f} s old, allowed are {max_age_s:.3f} s'
        start_ns, plan_ns = queue.plan_at(chunk.start_ns), queue.plan_at(now_ns)
        late = min(late_rows(chunk, start_ns, plan_ns), chunk.horizon - 1)
        allowed, limit = admission.allowed_rows(chunk, max_age_s)
        if allowed <= late:
            return f'{limit}: {allowed} rows may run, {late} are late'
        try:
            decision = self.strategy.horizon(chunk, self._state(chunk.start_ns, late, now_ns))
        except ChunkpilotError as error:
            return f'strategy {self.strategy.name}: {error}'
        if decision.chosen > allowed:
            decision = replace(decision, chosen=allowed, reason=limit)
        elif decision.chosen <= late:
            decision = replace(decision, chosen=late + 1, reason='late rows')
        queue.push(lay(chunk, start_ns, plan_ns, decision, max_age_s))
        queue.decide(decision)
        self._count.chunks_accepted += 1
        self._count.chosen_rows += decision.chosen
        return None

    def _state(self, start_ns: int, late: int, now_ns: int) -> ExecutionState:
        assert self._spec is not None
        space = self._spec.space
        pose = self._queue.pose_at(start_ns)
        last_row: F32 = np.zeros(space.size, np.float32)
        if pose is not None:
            last_row = spaces.to_row(space, pose[1], pose[1])
        return ExecutionState(
            now_ns, last_row, late, self._scheduler.delays.value_s, self._remaining_rows()
        )

    def tick(
        self, now_ns: int, measured: F64 | None, steady_ns: int, paced_ns: int | None = None
    ) -> Tick:
        """
        Do one control period.

        :param now_ns: ROS time; a jump backwards drops everything planned
        :param measured: where the robot is, shape (T,) in the policy's space; None = unknown
        :param steady_ns: steady clock, by which latency is measured
        :param paced_ns: the clock that ticks are paced by, where it is not the steady one
        """
        lateness_s = self._pacer.lateness_s(steady_ns if paced_ns is None else paced_ns)
        before, self._now_ns = self._now_ns, now_ns
        spec = self._spec
        if spec is None:
            return Tick()
        queue = self._queue
        if before is None:
            queue.reset_clock(now_ns)
        elif now_ns < before:
            queue.reset_clock(now_ns)
            self._gate.clock_jumped(now_ns)
            self._scheduler.restart('clock')
        if not self._gate.open or measured is None:
            queue.clock.advance(now_ns, queue.clock.plan_ns, 0.0)
            return Tick(decision=self._pop_decision())
        longest_ns = LONGEST_TICK * nanoseconds(self.config.period_s)
        elapsed_ns = min(now_ns - queue.clock.now_ns, longest_ns)
        slope = self._scheduler.slope(self._scale, queue, now_ns)
        queue.advance(now_ns, slope, elapsed_ns, np.array(measured, np.float64))
        command = self._command(now_ns, steady_ns, spec)
        if command is not None:
            self._count_tick(now_ns, lateness_s)
        return Tick(command, self._request(now_ns, spec), self._pop_decision())

    def _request(self, now_ns: int, spec: PolicySpec) -> ChunkRequest | None:
        if not self._serving:
            return None
        state = None
        if self.strategy.offers('wants_chunk'):
            state = self._state(now_ns, 0, now_ns)
        request = self._scheduler.request(
            now_ns, self._scale, self._queue, self._gate, spec, state
        )
        self._count.policy_calls += request is not None
        return request

    def _command(self, now_ns: int, steady_ns: int, spec: PolicySpec) -> Command | None:
        queue, plan = self._queue, self._queue.active
        if plan is None and not queue.started:
            return None
        target, velocity = queue.target(now_ns)
        row = max(plan.last_started, plan.first) if plan else -1
        chunk_id = plan.chunk.id if plan else Id()
        self._recorder.tick(
            (now_ns, queue.clock.plan_ns, chunk_id.seq, row),
            target,
            velocity,
            extended=row >= self.strategy.base,
        )
        self._commands += 1
        return Command(
            id=Id(self._session, self._commands),
            stamp_ns=now_ns,
            arm_epoch=self._gate.arm_epoch,
            groups=spaces.command_groups(spec.space, target, velocity),
            source='residual' if plan and plan.chunk.residual is not None else 'policy',
            chunk_id=chunk_id,
            row=row,
            row_ns=queue.clock.to_ros(plan.row_ns(row)) if plan else 0,
            observation_stamp_ns=plan.chunk.observation_stamp_ns if plan else 0,
            max_row_age_s=plan.max_age_s if plan else 0.0,
            starved=plan is None,
            space_hash=spec.space.hash,
            tick_steady_ns=steady_ns,
        )

    def _count_tick(self, now_ns: int, lateness_s: float) -> None:
        count = self._count
        if math.isnan(count.first_action_s):
            count.first_action_s = seconds(now_ns - max(self._gate.armed_ns, count.since_ns))
        count.ticks += 1
        count.starved_ticks += self._queue.active is None
        count.late_ticks += lateness_s > LATE_TICK_S
        count.worst_lateness_s = max(count.worst_lateness_s, lateness_s)

    def _pop_decision(self) -> HorizonDecision | None:
        if not self._queue.decisions:
            return None
        decision = self._queue.decisions.popleft()
        self._recorder.decision(decision)
        return decision

    def _remaining_rows(self) -> float:
        if self._spec is None:
            return 0.0
        return self._queue.remaining_ns / nanoseconds(self._spec.dt_s)

    def stats(self) -> ExecutionStats:
        """Return the counters of the episode that runs or ran last."""
        queue, delays = self._queue if self._spec else None, self._scheduler.delays
        running = queue.active if queue else None
        ran = running.rows_run(queue.clock.plan_ns) if queue and running else 0.0
        return self._count.summary(
            self.strategy.base,
            stamp_ns=self._now_ns or 0,
            session=self._session,
            strategy=self.strategy.name,
            arm_epoch=self._gate.arm_epoch,
            executed_rows=round(self._count.rows_run + ran),
            timeouts=self._scheduler.requests.timeouts,
            reanchors=queue.motion.reanchors if queue else 0,
            delay_p50_s=delays.at(0.5),
            delay_p95_s=delays.at(0.95),
            cold_start_s=delays.cold_start_s,
            remaining_rows=self._remaining_rows(),
        )

    def trace(self) -> Trace:
        """
        Return what was commanded in the episode that runs or ran last.

        :raises InvalidDataError: no policy is known yet, so nothing was
        """
        if self._spec is None:
            raise InvalidDataError('no trace: no policy was configured')
        return self._recorder.trace()
