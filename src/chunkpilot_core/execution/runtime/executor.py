"""
Runs chunks: the queue, plan time, requests, merges and starvation that every strategy stands on.

Rows are keyed by plan time, which slows with the guard and stops while nothing runs; what ran
since the observation is late and skipped, nothing else is; a new chunk takes over at its next row
boundary; a request leaves when what remains is what an answer takes.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
import math

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.runtime.gate import Change, Gate
from chunkpilot_core.execution.runtime.intake import Intake
from chunkpilot_core.execution.runtime.motion import Motion
from chunkpilot_core.execution.runtime.plan import late_rows, Plan
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.scheduler import Scheduler
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.execution.runtime.stats import Counters, Recorder, Trace
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.prediction import candidates
from chunkpilot_core.robot import Robot
from chunkpilot_core.timing import Pacer
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    ChunkVerdict,
    Command,
    ExecutionStats,
    F64,
    GuardEvent,
    GuardStatus,
    HorizonDecision,
    Id,
    nanoseconds,
    NS_PER_S,
    Observation,
    PolicySpec,
    seconds,
)
import numpy as np

LATE_TICK_S = 0.005
JUMP_NS = NS_PER_S // 2  # of ROS time from the steady clock; reading both never takes so long
LONGEST_TICK = 3  # periods that plan time moves by after a stall, so that no path is jumped over
LEAST_SCALE = 1e-4  # of full speed; slower is standing still
GUIDED_ROWS = 3.0  # that a verdict may take: what ran meanwhile displaces the rows that it names


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
        surprise: Surprise | None = None,
    ) -> None:
        """
        Make an executor; :meth:`configure` tells it the policy.

        :param robot: caps how old the observation behind a row may be
        :param session: id of this run, random where several may meet
        :param surprise: cuts horizons when the scene departs from what is expected
        """
        self.strategy = strategy
        self.config = config or ExecutionConfig()
        self._max_age_s = robot.max_row_age_s if robot else math.inf
        self._session = session
        self._surprise = surprise
        self._scheduler = Scheduler(strategy, self.config, session)
        self._gate = Gate()
        self._pacer = Pacer(self.config.period_s)
        self._spec: PolicySpec | None = None
        self._policy_session = 0
        self._serving = False
        self._scale = 1.0
        self._now_ns: int | None = None
        self._offset_ns = 0  # of ROS time to the steady clock
        self._commands = 0
        self._count = Counters()
        self._withdrawn: deque[tuple[Id, int, str]] = deque(maxlen=8)
        self._received: deque[ActionChunk] = deque(maxlen=4)  # as the policy sent them
        self._offers: deque[ChunkVerdict] = deque(maxlen=4)

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
        if self._surprise is not None:
            self._surprise.configure(spec)
        self._serving = True
        old, self._spec = self._spec, spec
        same_space = old is not None and old.space == spec.space
        if not same_space:
            self._lay_out(spec)
        self._intake = Intake(spec, self.strategy, self._queue, self._scheduler, self._max_age_s)
        if not (was_serving and same_space and session == self._policy_session):
            self._scheduler.requests.drop()
            self._scheduler.delays.restart()
        self._policy_session = session

    def restart_pacing(self) -> None:
        """Measure lateness from the next tick on: the phase of the ticks was moved."""
        self._pacer = Pacer(self.config.period_s)

    def _lay_out(self, spec: PolicySpec) -> None:
        config = self.config
        motion = Motion(spec.space, config)
        self._queue = PlanQueue(spec.space, self.strategy, motion, config)
        self._queue.count = self._count
        self._received.clear()
        self._offers.clear()
        self._recorder = Recorder(config.trace_ticks, spec.space.target_size)
        if self._now_ns is not None:
            self._queue.reset_clock(self._now_ns)

    def remember_delays(self, delays_s: Iterable[float]) -> None:
        """
        Take delays from request to answer that were measured earlier with this policy.

        Call it after :meth:`configure`, which takes the next answer for a cold one.
        """
        self._scheduler.delays.remember(delays_s)

    def warning(self) -> str:
        """
        Return what will go wrong with the delay as it is measured: '' or one sentence.

        The horizon is too short for the delay where it is less than twice as long with one
        request in flight, one and a half times with two.
        """
        if self._spec is None:
            return ''
        count, delays = self._count, self._scheduler.delays
        rows = float(self.strategy.base)
        if count.chunks_accepted:
            rows = count.chosen_rows / count.chunks_accepted
        share = self._scheduler.shortage(rows * self._spec.dt_s)
        if share <= 0.0:
            return ''
        flying = self.config.in_flight
        return (
            f'horizons of {rows:.3g} rows are {rows * self._spec.dt_s:.3g} s, less than '
            f'{1.0 + 1.0 / flying:g} times the delay of {delays.at(0.5):.3g} s with {flying} '
            f'request{"s" * (flying > 1)} in flight: about {share:.0%} of the ticks will starve'
        )

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
        Let plan time pass at a fraction of full speed; next to nothing is nothing.

        :raises InvalidDataError: not in 0 to 1
        """
        if not 0.0 <= scale <= 1.0:
            raise InvalidDataError(f'speed scale {scale}, allowed 0 to 1')
        # Times at which rows are due would otherwise be out of all range.
        self._scale = scale if scale >= LEAST_SCALE else 0.0

    def observe(self, observation: Observation, now_ns: int) -> None:
        """Take the newest observation: per-row correctors see it, and a surprise cuts."""
        if self._spec is None:
            return
        self._queue.rows.observation = observation
        if self._surprise is not None:
            reason = self._surprise.observe(
                observation, *self._queue.outlook(observation, self._surprise.lag_ns)
            )
            if reason is not None:
                self.cut(f'surprise: {reason}', now_ns, observation.stamp_ns)

    def cut(self, reason: str, now_ns: int, seen_ns: int | None = None) -> bool:
        """
        End the horizon in force as soon as an answer can be there, and ask for one at once.

        A request under way is superseded: its observation is older than what was seen.

        :param reason: published, e.g. ``'surprise: object moved 3 cm'``
        :param seen_ns: stamp of the oldest observation that may answer; None = now
        :returns: whether there was a horizon to cut
        """
        plan = self._queue.last if self._spec else None
        if plan is None:
            return False
        plan.overtaken = True
        if plan.decision.cut:
            return False
        wait_ns = round(self._queue.clock.slope * nanoseconds(self._scheduler.delays.value_s))
        stop = late_rows(plan.chunk, plan.start_ns, self._queue.plan_at(now_ns) + wait_ns)
        self._queue.shorten(plan, min(stop, plan.stop), reason)
        self._ask_anew(reason, now_ns if seen_ns is None else min(seen_ns, now_ns))
        return True

    def _ask_anew(self, reason: str, seen_ns: int) -> None:
        self._count.cuts += 1
        self._count.interrupts.append(reason)
        self._gate.not_before_ns = max(self._gate.not_before_ns, seen_ns)
        self._scheduler.restart(reason, urgent=True)

    def replan(self, event: GuardEvent, now_ns: int) -> bool:
        """
        Follow the guard's wish for another chunk.

        Where it says how many rows of a chunk may run, the others never do, also when the chunk
        comes later; the chunk before goes on to its own end. Otherwise what runs is cut.

        :param event: of kind ``'replan'``; one of another arm epoch changes nothing
        :returns: whether rows that would have run now don't
        """
        if event.arm_epoch != self._gate.arm_epoch or self._spec is None:
            return False
        reason = f'guard: {event.check}: {event.reason}'
        self._scheduler.ask_for_samples(self.config.replan_samples)
        if event.keep_rows < 0:
            return self.cut(reason, now_ns)
        self._withdrawn.append((event.chunk_id, event.keep_rows, reason))
        return self._withdraw(event.chunk_id, event.keep_rows, reason, now_ns)

    def judged(self, verdict: ChunkVerdict, now_ns: int) -> bool:
        """
        Follow predict_node: where it names other rows than those of a bad chunk, these run.

        They keep the chunk's id; commands made of them say so by their source. Those that are
        named too late would begin where nobody has judged them, and don't run.

        :returns: whether other rows run now
        """
        if verdict.ok or verdict.best_sample < 0 or self._spec is None:
            return False
        self._offers.append(verdict)
        return self._guide(verdict, self._spec, now_ns)

    def _guide(self, verdict: ChunkVerdict, spec: PolicySpec, now_ns: int) -> bool:
        chunk = next((one for one in self._received if one.id == verdict.chunk_id), None)
        if chunk is None or self._in_parts(chunk) or chunk.space_hash != spec.space.hash:
            return False
        if seconds(now_ns - verdict.stamp_ns) > GUIDED_ROWS * chunk.dt_s:
            return False
        rows = candidates.rows_of(chunk, spec.space, verdict.best_sample)
        if rows is None:
            return False
        other = replace(
            chunk, actions=rows, residual=None, residual_bound=None, expected_features=None,
            confidence=None, waypoint=None,
        )  # fmt: skip
        return self._queue.guide(other, f'guided: {verdict.check}: {verdict.reason}')

    def _in_parts(self, chunk: ActionChunk) -> bool:
        """Whether an answer has come in more than one message: a verdict is of all of them."""
        parts = [one for one in self._received if one.request_id == chunk.request_id]
        return len(parts) > 1 or not chunk.final

    def _withdraw(self, chunk_id: Id, rows: int, reason: str, now_ns: int) -> bool:
        changed = self._queue.withdraw(chunk_id, rows, reason)
        if changed:
            self._ask_anew(reason, now_ns)
        return changed

    def receive(self, chunk: ActionChunk, now_ns: int) -> str | None:
        """
        Take a chunk and decide its horizon.

        :returns: why it is refused, or None
        """
        reason = self._foreign(chunk)
        if reason is None:
            found = self._scheduler.requests.find(chunk.request_id)
            if isinstance(found, str):
                reason = found
                overtaken = self._scheduler.requests.take_superseded(chunk.request_id)
                if overtaken is not None:
                    self._scheduler.overtaken(overtaken, now_ns)
            else:
                reason = self._intake.take(chunk, found, now_ns)
                if reason is None:
                    self._received.append(chunk)
                    self._follow(chunk, now_ns)
        self._count.chunks_rejected += reason is not None
        return reason

    def _follow(self, chunk: ActionChunk, now_ns: int) -> None:
        """Do what was wished for a chunk before it came."""
        for chunk_id, rows, why in self._withdrawn:
            if chunk_id == chunk.id:
                self._withdraw(chunk_id, rows, why, now_ns)
        for verdict in self._offers:
            if verdict.chunk_id == chunk.id and self._spec is not None:
                self._guide(verdict, self._spec, now_ns)

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

    def tick(
        self, now_ns: int, measured: F64 | None, steady_ns: int, paced_ns: int | None = None
    ) -> Tick:
        """
        Do one control period.

        :param now_ns: ROS time; a jump drops everything planned
        :param measured: where the robot is, shape (T,) in the policy's space; None or not finite =
            unknown
        :param steady_ns: steady clock, by which latency is measured
        :param paced_ns: the clock that ticks are paced by, where it is not the steady one
        """
        lateness_s = self._pacer.lateness_s(steady_ns if paced_ns is None else paced_ns)
        before, self._now_ns = self._now_ns, now_ns
        offset_ns = 0 if paced_ns is not None else now_ns - steady_ns  # simulated time may leap
        leapt = abs(offset_ns - self._offset_ns) > JUMP_NS
        self._offset_ns = offset_ns
        spec = self._spec
        if spec is None:
            return Tick()
        queue = self._queue
        if before is None:
            queue.reset_clock(now_ns)
        from_future = self._gate.not_before_ns > now_ns + JUMP_NS  # told before any tick
        if from_future or (before is not None and (now_ns < before or leapt)):
            queue.reset_clock(now_ns)
            self._gate.clock_jumped(now_ns)
            self._scheduler.restart('clock')
        known = measured is not None and np.isfinite(measured).all()  # NaN would be commanded
        if not self._gate.open or measured is None or not known:
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
            state = self._intake.state(now_ns, 0, now_ns)
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
            source=_source(plan),
            chunk_id=chunk_id,
            row=row,
            row_ns=queue.clock.to_ros(plan.row_ns(row)) if plan else 0,
            observation_stamp_ns=plan.chunk.observation_stamp_ns if plan else 0,
            max_row_age_s=plan.max_age_s if plan else 0.0,
            starved=plan is None,
            space_hash=spec.space.hash,
            speed_scale=self._scale,
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
            remaining_rows=queue.remaining_rows if queue else 0.0,
        )

    @property
    def interrupts(self) -> tuple[str, ...]:
        """Why horizons were cut in the episode that runs or ran last, in order."""
        return tuple(self._count.interrupts)

    def trace(self) -> Trace:
        """
        Return what was commanded in the episode that runs or ran last.

        :raises InvalidDataError: no policy is known yet, so nothing was
        """
        if self._spec is None:
            raise InvalidDataError('no trace: no policy was configured')
        return self._recorder.trace()


def _source(plan: Plan | None) -> str:
    """Return whose rows a command is made of."""
    if plan is not None and plan.guided:
        return 'guided'
    return 'residual' if plan and plan.chunk.residual is not None else 'policy'
