"""
Runs chunks: the queue, plan time, requests, merges and starvation that every strategy stands on.

Rows are keyed by plan time, which slows with the guard and stops while nothing runs; what ran
since the observation is late and skipped, nothing else is; a new chunk takes over at its next row
boundary; a request leaves when what remains is what an answer takes.
"""

from dataclasses import dataclass, replace
import math

from chunkpilot_core import spaces
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError, InvalidDataError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime import admission
from chunkpilot_core.execution.runtime import plan as plans
from chunkpilot_core.execution.runtime.motion import Columns, Motion
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.requests import Requests
from chunkpilot_core.execution.runtime.stats import Counters, Recorder, Trace
from chunkpilot_core.robot import Robot
from chunkpilot_core.timing import DelayEstimator, Pacer
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
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

    @dataclass(frozen=True)
    class Config:
        """Timing, merges and what happens when rows run out."""

        period_s: float = option(0.01, 'control period', unit='s', min=0.001, max=1.0)
        starvation: str = option(
            'decelerate',
            'when no row is due: decelerate and hold; hold at once; late = run the rows beyond '
            'the horizon first; stretch = slow down so that the rows last until the answer',
            choices=('decelerate', 'hold', 'late', 'stretch'),
        )
        stop_acceleration: float = option(
            0.5, 'of the acceleration limits, for decelerate', min=0.01, max=1.0
        )
        min_stretch: float = option(0.3, 'slowest speed that stretch goes to', min=0.05, max=1.0)
        margin: float = option(
            0.25,
            'asked for earlier than the delay quantile, as a fraction of it',
            min=0.0,
            max=10.0,
        )
        delay_quantile: float = option(
            0.95, 'quantile of the delay to plan with', min=0.5, max=1.0
        )
        delay_window: int = option(64, 'answers that the quantile is taken of', min=2, max=4096)
        initial_delay_s: float = option(
            0.1, 'delay assumed until the first answer', unit='s', min=0.0, max=60.0
        )
        request_timeout_s: float = option(
            2.0, 'after this the policy is asked again', unit='s', min=0.05, max=600.0
        )
        retry_s: float = option(
            0.1, 'pause before asking again after a refused answer', unit='s', min=0.0, max=60.0
        )
        blend_rows: int = option(
            4, 'rows over which an absolute plan fades into the next', min=0, max=100
        )
        reanchor_m: float = option(
            0.1,
            'gap between commanded and measured from which relative rows count from the measured',
            unit='m',
            min=0.001,
            max=10.0,
        )
        reanchor_rad: float = option(0.2, 'the same for joints', unit='rad', min=0.001, max=10.0)
        trace_ticks: int = option(
            6000, 'ticks of an episode that are traced for plots', min=1, max=1_000_000
        )

    def __init__(
        self,
        strategy: Strategy,
        config: Config | None = None,
        robot: Robot | None = None,
        session: int = 1,
    ) -> None:
        """
        Make an executor; :meth:`configure` tells it the policy.

        :param robot: caps how old the observation behind a row may be
        :param session: id of this run, random where several may meet
        """
        self.strategy = strategy
        self.config = config = config or self.Config()
        self._max_age_s = robot.max_row_age_s if robot else math.inf
        self._requests = Requests(session)
        self._delays = DelayEstimator(
            config.delay_window, config.delay_quantile, config.initial_delay_s
        )
        self._pacer = Pacer(config.period_s)
        self._spec: PolicySpec | None = None
        self._serving = False
        self._status: GuardStatus | None = None
        self._armed_ns = 0
        self._running = False  # an episode with a task
        self._task_id = ''
        self._scale = 1.0
        self._now_ns: int | None = None
        self._not_before_ns = self._retry_ns = 0
        self._ask_now = False
        self._reason = 'start'
        self._commands = 0
        self._count = Counters()

    # ---- what the caller tells ------------------------------------------------------------------

    def configure(self, spec: PolicySpec | None) -> None:
        """
        Work with a policy from now on, or with none until further notice.

        Requests under way are dropped: whoever serves now did not get them.

        :raises CapabilityError: the policy does not offer what the strategy needs
        :raises ConfigError: the strategy's configuration does not fit the policy
        """
        self._requests.drop()
        self._serving = False
        if spec is None:
            return
        self.strategy.configure(spec)
        self._serving = True
        self._delays.restart()
        old, self._spec = self._spec, spec
        if old is None or old.space != spec.space:
            self._lay_out(spec)

    def _lay_out(self, spec: PolicySpec) -> None:
        config = self.config
        columns = Columns(spec.space, config.reanchor_m, config.reanchor_rad)
        motion = Motion(spec.space, columns, config.stop_acceleration)
        self._queue = PlanQueue(spec.space, self.strategy, motion)
        self._queue.run_tail = config.starvation == 'late'
        self._queue.decelerate = config.starvation != 'hold'
        self._queue.blend_rows = config.blend_rows
        self._queue.count = self._count
        self._recorder = Recorder(config.trace_ticks, spec.space.target_size)
        if self._now_ns is not None:
            self._queue.reset_clock(self._now_ns)

    def set_guard(self, status: GuardStatus, now_ns: int) -> None:
        """Follow the guard: commands only while it is armed, everything anew after a re-arm."""
        old, self._status = self._status, status
        if old is not None and (old.arm_epoch, _ready(old)) == (status.arm_epoch, _ready(status)):
            return
        if not _ready(status):
            if _ready(old):  # what was observed since the stop began may be acted on
                self._require_observations_from(min(status.since_ns, now_ns))
            self._restart('guard: stopped', now_ns)
            return
        self._armed_ns = now_ns
        if _ready(old):  # another epoch, and the stop between them was missed
            self._require_observations_from(now_ns)
        self._restart('guard: armed' if self._commands else 'start', now_ns)

    def set_episode(self, running: bool, task_id: str, now_ns: int, episode_id: str = '') -> None:
        """
        Start or end an episode; a new task within one drops what was planned for the old.

        :param task_id: task in force; an episode without one does not run
        """
        running = running and bool(task_id)
        same = self._running and running and episode_id == self._count.episode_id
        if (same and task_id == self._task_id) or not (running or self._running):
            return
        if same:
            self._drop('task', now_ns)
        else:
            self._restart('start', now_ns)
        self._running, self._task_id = running, task_id if running else ''
        if running:
            self._require_observations_from(now_ns)
        if running and not same:
            self._start_counting(now_ns, episode_id)

    def _start_counting(self, now_ns: int, episode_id: str) -> None:
        self._count = Counters(since_ns=now_ns, episode_id=episode_id)
        self._requests.timeouts = 0
        if self._spec is not None:
            self._queue.count = self._count
            self._queue.motion.reanchors = 0
            self._recorder.clear()

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

    def receive(self, chunk: ActionChunk, now_ns: int) -> str | None:
        """
        Take a chunk and decide its horizon.

        :returns: why it is refused, or None
        """
        reason = self._foreign(chunk)
        if reason is None:
            found = self._requests.find(chunk.request_id)
            reason = found if isinstance(found, str) else self._admit(chunk, found, now_ns)
        self._count.chunks_rejected += reason is not None
        return reason

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
        wait_ns = round(self._queue.clock.slope * nanoseconds(self._delays.value_s))
        at_ns = self._queue.plan_at(now_ns) + wait_ns
        stop = plans.late_rows(plan.chunk, plan.start_ns, at_ns)
        self._queue.shorten(plan, min(stop, plan.stop), reason)
        self._count.cuts += 1
        self._requests.drop()
        self._require_observations_from(now_ns)
        self._reason, self._ask_now = reason, True
        return True

    # ---- what the caller gets -------------------------------------------------------------------

    def tick(self, now_ns: int, measured: F64 | None, steady_ns: int) -> Tick:
        """
        Do one control period.

        :param now_ns: ROS time; a jump backwards drops everything planned
        :param measured: where the robot is, shape (T,) in the policy's space; None = unknown
        :param steady_ns: steady clock, for lateness and latency only
        """
        lateness_s = self._pacer.lateness_s(steady_ns)
        before, self._now_ns = self._now_ns, now_ns
        if self._spec is None:
            return Tick()
        queue = self._queue
        if before is None or now_ns < before:
            self._jumped(now_ns, first=before is None)
        if not (self._running and _ready(self._status)) or measured is None:
            queue.clock.advance(now_ns, queue.clock.plan_ns, 0.0)
            return Tick(decision=self._pop_decision())
        elapsed_ns = min(
            now_ns - queue.clock.now_ns, LONGEST_TICK * nanoseconds(self.config.period_s)
        )
        self._check_age(now_ns)
        queue.advance(now_ns, self._slope(now_ns), elapsed_ns, np.array(measured, np.float64))
        command = self._command(now_ns, steady_ns)
        if command is not None:
            self._count_tick(now_ns, lateness_s)
        return Tick(command, self._request(now_ns), self._pop_decision())

    def stats(self) -> ExecutionStats:
        """Return the counters of the episode that runs or ran last."""
        queue = self._queue if self._spec is not None else None
        running = queue.active if queue else None
        done = running.rows_done(queue.clock.plan_ns) if queue and running else 0
        return self._count.summary(
            self.strategy.base,
            stamp_ns=self._now_ns or 0,
            session=self._requests.session,
            strategy=self.strategy.name,
            arm_epoch=self._status.arm_epoch if self._status else 0,
            executed_rows=self._count.executed_rows + done,
            timeouts=self._requests.timeouts,
            reanchors=queue.motion.reanchors if queue else 0,
            delay_p50_s=self._delays.at(0.5),
            delay_p95_s=self._delays.at(0.95),
            cold_start_s=self._delays.cold_start_s,
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

    # ---- state ----------------------------------------------------------------------------------

    def _require_observations_from(self, stamp_ns: int) -> None:
        self._not_before_ns = max(self._not_before_ns, stamp_ns)

    def _restart(self, reason: str, now_ns: int) -> None:
        """Begin anew: no command until a first chunk, whose rows count from the measured pose."""
        self._requests.drop()
        self._reason, self._retry_ns, self._ask_now = reason, 0, False
        if self._spec is not None:
            self._queue.restart(now_ns)

    def _drop(self, reason: str, now_ns: int) -> None:
        """Drop what is planned; the arm comes to rest where it is until the next chunk."""
        self._requests.drop()
        self._reason, self._retry_ns, self._ask_now = reason, 0, False
        if self._spec is not None:
            self._queue.drop(now_ns)

    def _jumped(self, now_ns: int, *, first: bool) -> None:
        self._queue.reset_clock(now_ns)
        if first:
            return
        self._drop('clock', now_ns)
        self._not_before_ns = now_ns
        self._armed_ns = min(self._armed_ns, now_ns)

    def _check_age(self, now_ns: int) -> None:
        plan = self._queue.active
        if plan is None or plan.stop <= plan.last_started + 1:
            return
        if seconds(now_ns - plan.chunk.observation_stamp_ns) > plan.max_age_s:
            self._queue.shorten(plan, 0, 'age')

    def _slope(self, now_ns: int) -> float:
        """Return the guard's scale, lowered where `stretch` waits for an answer."""
        queue, request = self._queue, self._requests.in_flight
        if self.config.starvation != 'stretch' or request is None or queue.next is not None:
            return self._scale
        wait_ns = max(
            request.stamp_ns + nanoseconds(self._delays.value_s) - now_ns,
            nanoseconds(self.config.period_s),
        )
        needed = queue.remaining_ns / (max(self._scale, 1e-6) * wait_ns)
        return self._scale * min(1.0, max(needed, self.config.min_stretch))

    def _count_tick(self, now_ns: int, lateness_s: float) -> None:
        count = self._count
        if math.isnan(count.first_action_s):
            count.first_action_s = seconds(now_ns - max(self._armed_ns, count.since_ns))
        count.ticks += 1
        count.starved_ticks += self._queue.active is None
        count.late_ticks += lateness_s > LATE_TICK_S
        count.worst_lateness_s = max(count.worst_lateness_s, lateness_s)

    def _remaining_rows(self) -> float:
        if self._spec is None:
            return 0.0
        return self._queue.remaining_ns / nanoseconds(self._spec.dt_s)

    def _pop_decision(self) -> HorizonDecision | None:
        decisions = self._queue.decisions
        return decisions.popleft() if decisions else None

    # ---- chunks ---------------------------------------------------------------------------------

    def _foreign(self, chunk: ActionChunk) -> str | None:
        if self._spec is None or self._status is None:
            return 'nothing was asked for yet'
        if chunk.request_id.session != self._requests.session:
            return (
                f'it answers session {chunk.request_id.session}, this is {self._requests.session}'
            )
        if chunk.arm_epoch != self._status.arm_epoch:
            return f'it is of arm epoch {chunk.arm_epoch}, in force is {self._status.arm_epoch}'
        if chunk.task_id != self._task_id:
            return f'it is for task {chunk.task_id!r}, in force is {self._task_id!r}'
        return None

    def _admit(self, chunk: ActionChunk, request: ChunkRequest, now_ns: int) -> str | None:
        assert self._spec is not None
        running = self._queue.last
        newest_ns = running.chunk.observation_stamp_ns if running else 0
        reason = admission.refusal(chunk, request, self._spec, now_ns, newest_ns)
        if reason is None:
            reason = self._plan(chunk, now_ns)
        self._requests.close(chunk.request_id, accepted=reason is None)
        if reason is None:
            self._delays.add(seconds(now_ns - request.stamp_ns))
        else:
            self._retry_ns = now_ns + nanoseconds(self.config.retry_s)
        return reason

    def _plan(self, chunk: ActionChunk, now_ns: int) -> str | None:
        """Decide the horizon of a valid chunk and queue it, or say why it comes too late."""
        queue = self._queue
        max_age_s = self._row_age_limit(chunk)
        age_s = seconds(now_ns - chunk.observation_stamp_ns)
        if age_s > max_age_s:
            return f'its observation is {age_s:.3f} s old, allowed are {max_age_s:.3f} s'
        start_ns, plan_ns = queue.plan_at(chunk.start_ns), queue.plan_at(now_ns)
        late = min(plans.late_rows(chunk, start_ns, plan_ns), chunk.horizon - 1)
        allowed, limit = admission.allowed_rows(chunk, max_age_s)
        if allowed <= late:
            return f'{limit}: {allowed} rows may run, {late} are late'
        try:
            decision = self.strategy.horizon(chunk, self._state(chunk, late, now_ns))
        except ChunkpilotError as error:
            return f'strategy {self.strategy.name}: {error}'
        if decision.chosen > allowed:
            decision = replace(decision, chosen=allowed, reason=limit)
        elif decision.chosen <= late:
            decision = replace(decision, chosen=late + 1, reason='late rows')
        queue.push(plans.lay(chunk, start_ns, plan_ns, decision, max_age_s))
        queue.decisions.append(decision)
        self._recorder.decision(decision)
        self._count.chunks_accepted += 1
        self._count.chosen_rows += decision.chosen
        return None

    def _row_age_limit(self, chunk: ActionChunk) -> float:
        assert self._spec is not None
        wanted = chunk.max_row_age_s or self._spec.max_row_age_s
        return min(wanted or chunk.horizon * chunk.dt_s + 0.5, self._max_age_s)

    def _state(self, chunk: ActionChunk | None, late: int, now_ns: int) -> ExecutionState:
        assert self._spec is not None
        space = self._spec.space
        last_row: F32 = np.zeros(space.size, np.float32)
        pose = self._queue.pose_at(chunk.start_ns if chunk else now_ns)
        if pose is not None:
            last_row = spaces.to_row(space, pose[1], pose[1])
        return ExecutionState(now_ns, last_row, late, self._delays.value_s, self._remaining_rows())

    # ---- requests and commands ------------------------------------------------------------------

    def _request(self, now_ns: int) -> ChunkRequest | None:
        timeout_s = max(self.config.request_timeout_s, 3.0 * self._delays.value_s)
        self._requests.expire(now_ns, timeout_s)
        waiting = self._requests.in_flight is not None or now_ns < self._retry_ns
        if not self._serving or waiting or not self._due(now_ns):
            return None
        request = self._make_request(now_ns)
        self._requests.sent(request)
        self._count.policy_calls += 1
        self._reason, self._ask_now = '', False
        return request

    def _due(self, now_ns: int) -> bool:
        """
        Whether waiting for the next tick would let the rows run out before an answer.

        Where the horizon is shorter than twice the delay some starvation can't be avoided; it is
        least when asked at half of the horizon, or at its end where even one delay is longer.
        """
        queue, config = self._queue, self.config
        plan = queue.last
        if plan is None or self._ask_now:
            return True
        if self.strategy.offers('wants_chunk') and self.strategy.wants_chunk(
            self._state(None, 0, now_ns)
        ):
            return True
        wait_s = self._scale * self._delays.value_s * (1.0 + config.margin)
        horizon_s = seconds(plan.stop * plan.dt_ns)
        if horizon_s < 2.0 * wait_s:
            halving = horizon_s > wait_s or config.starvation == 'stretch'
            wait_s = horizon_s / 2.0 if halving else 0.0
        return queue.remaining_ns < nanoseconds(wait_s + self._scale * config.period_s)

    def _make_request(self, now_ns: int) -> ChunkRequest:
        assert self._spec is not None
        assert self._status is not None
        queue, clock, plan = self._queue, self._queue.clock, self._queue.last
        delay_s = self._delays.value_s
        answer_ns = min(clock.plan_ns + round(clock.slope * nanoseconds(delay_s)), 1 << 62)
        start_ns = now_ns + nanoseconds(delay_s)
        if plan is not None:  # at the first row boundary then
            row = min(plans.late_rows(plan.chunk, plan.start_ns, answer_ns), plan.stop)
            start_ns = clock.to_ros(max(plan.row_ns(row), clock.plan_ns))
        request = ChunkRequest(
            id=self._requests.next_id(),
            stamp_ns=now_ns,
            arm_epoch=self._status.arm_epoch,
            task_id=self._task_id,
            reason=self._reason or ('horizon' if plan else 'starved'),
            start_ns=start_ns,
            not_before_ns=self._not_before_ns,
            delay_s=delay_s,
            n_samples=self.strategy.n_samples,
            space_hash=self._spec.space.hash,
        )
        rows = queue.prefix()
        active = queue.active
        if rows is None or active is None:
            return request
        first, targets, velocities = rows
        committed = min(plans.late_rows(active.chunk, active.start_ns, answer_ns), active.stop)
        return replace(
            request,
            prefix=targets,
            prefix_velocity=velocities,
            prefix_start_ns=clock.to_ros(active.row_ns(first)),
            prefix_dt_s=seconds(active.dt_ns),
            committed_rows=max(committed - first, 0),
        )

    def _command(self, now_ns: int, steady_ns: int) -> Command | None:
        queue = self._queue
        if queue.active is None and not queue.started:
            return None
        assert self._spec is not None
        assert self._status is not None
        target, velocity = queue.target(now_ns)
        plan = queue.active
        self._commands += 1
        row = max(plan.last_started, plan.first) if plan else -1
        self._recorder.tick(
            now_ns,
            queue.clock.plan_ns,
            target,
            velocity,
            plan.chunk.id.seq if plan else 0,
            row,
            row >= self.strategy.base,
        )
        return Command(
            id=Id(self._requests.session, self._commands),
            stamp_ns=now_ns,
            arm_epoch=self._status.arm_epoch,
            groups=spaces.command_groups(self._spec.space, target, velocity),
            chunk_id=plan.chunk.id if plan else Id(),
            row=row,
            row_ns=queue.clock.to_ros(plan.row_ns(row)) if plan else 0,
            observation_stamp_ns=plan.chunk.observation_stamp_ns if plan else 0,
            max_row_age_s=plan.max_age_s if plan else 0.0,
            starved=plan is None,
            space_hash=self._spec.space.hash,
            tick_steady_ns=steady_ns,
        )


def _ready(status: GuardStatus | None) -> bool:
    return status is not None and status.state is ArmState.ARMED and not status.moving
