"""The plan that runs and the one that comes next, moved along plan time."""

from collections import deque
from dataclasses import replace

from chunkpilot_core import spaces
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.runtime.clock import PlanClock
from chunkpilot_core.execution.runtime.expectation import Arm
from chunkpilot_core.execution.runtime.merge import value
from chunkpilot_core.execution.runtime.motion import Motion, Step
from chunkpilot_core.execution.runtime.plan import known_rows, lay, Plan, with_residual
from chunkpilot_core.execution.runtime.poses import Poses
from chunkpilot_core.execution.runtime.rows import Rows
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.execution.runtime.stats import Counters
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    F32,
    F64,
    HorizonDecision,
    Id,
    Observation,
    seconds,
)
import numpy as np

GRACE_S = 0.1  # a row under way may end so long after it has become too old


class PlanQueue:
    """
    Rows in force for one action space.

    Invariants: plan time never goes back; a row starts at most once; of every accepted chunk each
    row ends up late, executed or discarded.
    """

    def __init__(
        self, space: ActionSpace, strategy: Strategy, motion: Motion, config: ExecutionConfig
    ) -> None:
        self.clock = PlanClock()
        self.motion = motion
        self.active: Plan | None = None
        self.next: Plan | None = None
        self.ended: Plan | None = None  # ran out; more rows of its chunk may come
        self.count = Counters()
        self.decisions: deque[HorizonDecision] = deque(maxlen=16)
        self.rows = Rows(space, strategy)
        self.poses = Poses()
        self._space = space
        self._run_tail = config.starvation == 'late'
        self._decelerate = config.starvation != 'hold'
        self._by_time = config.alignment == 'time'
        self._chunk_start = np.zeros(space.target_size)
        self._merged_velocity: F64 | None = None

    @property
    def last(self) -> Plan | None:
        """The plan that runs last: the one that comes next, else the one in force."""
        return self.next or self.active

    @property
    def started(self) -> bool:
        """Whether anything was commanded since the last restart."""
        return self.motion.commanded is not None

    @property
    def remaining_ns(self) -> int:
        """Plan time left until the horizon ends."""
        return max(0, self.last.end_ns - self.clock.plan_ns) if self.last else 0

    @property
    def remaining_rows(self) -> float:
        """The same in rows."""
        return self.remaining_ns / self.last.dt_ns if self.last else 0.0

    def plan_at(self, ros_ns: int) -> int:
        """Return the plan time of a ROS time; it stops where the rows in force end."""
        plan_ns = self.clock.at(ros_ns)
        if ros_ns < self.clock.now_ns or self.active is None or self._by_time:
            return plan_ns
        return min(plan_ns, max(self.active.end_ns, self.clock.plan_ns))

    def outlook(
        self, observation: Observation, lag_ns: int
    ) -> tuple[ActionChunk | None, float, Arm | None]:
        """
        Return what an observation is to be compared with.

        :param lag_ns: how far behind its commands the arm may be
        :returns: the chunk that runs last unless it is cut, how many of its rows were over, and
            where the arm is and was sent
        """
        plan, stamp_ns = self.last, observation.stamp_ns
        if plan is None or plan.decision.cut:
            return None, 0.0, None
        row = (self.plan_at(stamp_ns) - plan.start_ns) / plan.dt_ns
        return plan.chunk, row, self.poses.arm(stamp_ns, lag_ns)

    def previous(self, chunk: ActionChunk) -> F32 | None:
        """
        Return what the last plan says for the times of a chunk's rows, shape (H, A).

        Rows beyond its horizon count; NaN where it says nothing, None where nothing is planned or
        its horizon was cut.
        """
        plan = self.last
        if plan is None or plan.decision.cut:
            return None
        first = (self.plan_at(chunk.start_ns) - plan.start_ns) / plan.dt_ns
        rows: F32 = self.rows.resample(plan.actions[: plan.known], first, chunk.horizon)
        return rows

    def push(self, plan: Plan) -> None:
        """Let a plan take over at its next row boundary; one that still waits is discarded."""
        if self.next is not None:
            self._retire(self.next)
        self.next, self.ended = plan, None
        self.rows.add(plan)

    def find(self, request_id: Id) -> Plan | None:
        """Return the plan made of the first rows of an answer that comes in parts."""
        for plan in (self.next, self.active, self.ended):
            if plan is not None and plan.chunk.request_id == request_id:
                return plan
        return None

    def revise(self, plan: Plan, chunk: ActionChunk, decision: HorizonDecision) -> None:
        """
        Put the rows of a later revision in place of those that have not started.

        :param decision: a horizon of at least the rows that have started
        """
        old = replace(plan)
        started = plan.last_started + 1
        plan.chunk, plan.actions, plan.known = chunk, with_residual(chunk), known_rows(chunk)
        plan.actions[:started] = old.actions[:started]
        if plan is self.ended:
            self._revive(plan, decision)
        plan.stop, plan.decision = decision.chosen, decision
        if plan is self.active and started < old.stop and plan.last_started >= plan.first:
            end_ns = plan.row_ns(started + 1)
            target = value(self._space, old, end_ns)
            self.motion.merge.apply(target, end_ns)
            self.motion.merge.begin(end_ns, target, old, plan)

    def guide(self, chunk: ActionChunk, reason: str) -> bool:
        """
        Run all rows of a chunk that have not started as they are now, and nothing but them.

        :param chunk: a plan's, with other rows
        :returns: whether there is a plan of it that has rows left, and still means something
        """
        plan = next((p for p in (self.next, self.active) if p and p.chunk.id == chunk.id), None)
        if plan is None or plan.guided or plan.overtaken or plan.last_started + 1 >= plan.known:
            return False
        decision = replace(plan.decision, chosen=plan.known, reason=reason, cut=False)
        self.revise(plan, chunk, decision)
        plan.guided, plan.limit = True, plan.known
        self.decide(decision)
        return True

    def _revive(self, plan: Plan, decision: HorizonDecision) -> None:
        """Go on with a plan that ran out, as if the rest had been there: it counts once."""
        if self.next is not None or decision.chosen <= plan.stop:
            return
        ran = plan.rows_run(plan.end_ns)
        self.count.rows_accepted -= plan.chunk.horizon
        self.count.rows_late -= plan.rows_late + ran
        self.next = lay(plan.chunk, plan.start_ns, self.clock.plan_ns, decision, plan.max_age_s)
        self.next.limit, self.ended = plan.limit, None

    def decide(self, decision: HorizonDecision) -> None:
        """Let a decision be published."""
        self.decisions.append(decision)

    def drop(self, now_ns: int, *, forget: bool = False) -> None:
        """
        Discard all rows; what moves comes to rest.

        :param forget: what was commanded too, so that the next row counts from the measured pose
        """
        for plan in (self.active, self.next):
            if plan is not None:
                self._retire(plan)
        if self.started and not self.motion.stopping:
            _, velocity = self._position(self.clock.plan_ns, self.clock.slope)
            self.motion.stop(now_ns, velocity if self._decelerate else None)
        self.active = self.next = self.ended = None
        self.rows.keep(None)
        if forget:
            self.motion.commanded = None

    def reset_clock(self, now_ns: int) -> None:
        """Start over after a jump of the clock; what was commanded is held."""
        self.drop(now_ns)
        self.clock.reset(now_ns)
        self.poses.clear()
        if self.started:
            self.motion.stop(now_ns, None)

    def shorten(self, plan: Plan, stop: int, reason: str) -> None:
        """End a plan's horizon after row ``stop`` - 1, not before the row under way."""
        stop = self._earliest(plan, stop)
        plan.decision = replace(plan.decision, chosen=stop, reason=reason, cut=True)
        plan.stop = stop
        self.decide(plan.decision)

    def withdraw(self, chunk_id: Id, rows: int, reason: str) -> bool:
        """
        Run no more than the first rows of a chunk; what ran before it goes on to its own end.

        :returns: whether rows that would have run now don't
        """
        waiting = self.next
        if any(p and p.guided and p.chunk.id == chunk_id for p in (waiting, self.active)):
            return False  # those rows don't run anyway
        for plan in (waiting, self.active, self.ended):
            if plan is not None and plan.chunk.id == chunk_id:
                plan.limit = min(plan.limit, rows)
        if waiting is not None and waiting.chunk.id == chunk_id and rows <= waiting.first:
            self._retire(waiting)
            self.next = None
            self.rows.keep(self.active)
            self.decide(replace(waiting.decision, chosen=rows, reason=reason, cut=True))
            return True
        for plan in (waiting, self.active):
            if plan is not None and plan.chunk.id == chunk_id and rows < plan.stop:
                if plan.decision.cut and self._earliest(plan, rows) >= plan.stop:
                    return False  # a wish told again: an answer may be under way
                self.shorten(plan, rows, reason)
                return True
        return False

    def bounded(self, plan: Plan, decision: HorizonDecision) -> HorizonDecision:
        """Return a horizon for more rows of a chunk without those that were withdrawn."""
        if decision.chosen <= plan.limit:
            return decision
        stop = self._earliest(plan, plan.limit)
        return replace(decision, chosen=stop, reason='guard: rows were withdrawn', cut=True)

    @staticmethod
    def _earliest(plan: Plan, stop: int) -> int:
        """Return the row before which a plan can end that is to end before ``stop``."""
        return max(stop, plan.last_started + 1, plan.first + 1)

    def advance(self, now_ns: int, slope: float, elapsed_ns: int, measured: F64) -> None:
        """
        Move on by one tick.

        :param slope: plan time per ROS time, 0 to 1
        :param elapsed_ns: ROS time to move by
        :param measured: shape (T,)
        """
        self._cut_by_age(now_ns)
        if slope < 1.0:
            self._leave_slowed(now_ns, slope)
        goal_ns = self.clock.plan_ns + round(slope * elapsed_ns)
        plan_ns = self.clock.plan_ns
        while True:
            reach_ns = goal_ns if self.active is None else min(goal_ns, self.active.end_ns)
            if self.next is not None and (self.active is None or self.next.begun_ns <= reach_ns):
                if self.active is None:
                    self.next.begin_now(plan_ns)
                plan_ns = max(plan_ns, self.next.begun_ns)
                self._run(now_ns, plan_ns, measured)
                self._switch(plan_ns, measured, slope)
                continue
            if self.active is None:
                break
            plan_ns = reach_ns
            self._run(now_ns, plan_ns, measured)
            if plan_ns == goal_ns:
                break
            if self.next is not None:
                self.next.begin_now(plan_ns)
            elif not (self._run_tail and self._extend(self.active)):
                since_ns = now_ns - round((goal_ns - plan_ns) / slope)
                self._exhaust(since_ns, slope)
                break
        if self._by_time:
            plan_ns = goal_ns
        self.clock.advance(now_ns, plan_ns, slope if self.active or self._by_time else 0.0)
        commanded = self.motion.commanded if self.motion.commanded is not None else measured
        self.poses.note(now_ns, measured, commanded)

    def _cut_by_age(self, now_ns: int) -> None:
        plan = self.active
        if plan is None or plan.stop <= max(plan.last_started, plan.first) + 1:
            return
        if seconds(now_ns - plan.chunk.observation_stamp_ns) > plan.max_age_s:
            self.shorten(plan, 0, 'age')

    def _leave_slowed(self, now_ns: int, slope: float) -> None:
        """
        Let the row under way go when it was cut or is old, and its end may be far away, or never
        come. A chunk that waits takes over where the arm is.
        """
        plan = self.active
        if plan is None:
            return
        overdue_s = seconds(now_ns - plan.chunk.observation_stamp_ns) - plan.max_age_s
        if slope > 0.0 and overdue_s <= GRACE_S:
            return
        if slope == 0.0 and not (plan.decision.cut or overdue_s > 0.0):
            return
        if self.next is not None:
            self.next.begin_now(self.clock.plan_ns)
            return
        _, velocity = self._position(self.clock.plan_ns, slope)
        self._retire(plan)
        self.active = None
        self.motion.stop(now_ns, velocity if self._decelerate and slope > 0.0 else None)

    def target(self, now_ns: int) -> tuple[F64, F64]:
        """Return target and velocity (T,) now, and remember them as commanded."""
        if self.active is None:
            target, velocity = self.motion.resting(now_ns)
        else:
            target, velocity = self._position(self.clock.plan_ns, self.clock.slope)
        self.motion.commanded = target
        return target, velocity

    def prefix(self) -> tuple[int, F64, F64] | None:
        """
        Return the rows that run or may run before an answer.

        :returns: the first row, and targets and velocities (R, T) up to the end of the chunk, or
            to where its horizon was cut
        """
        plan = self.active
        if plan is None or plan.last_started < plan.first:
            return None
        target = self.motion.target
        stop = plan.stop if plan.decision.cut else plan.known
        rows = plan.actions[plan.last_started + 1 : stop]
        start = self._chunk_start if self.motion.columns.chunk_start.any() else target
        targets = np.vstack((target[None], spaces.resolve(self._space, rows, start)))
        for i in range(1, len(targets) if self.motion.merge.active else 0):
            self.motion.merge.apply(targets[i], plan.row_ns(plan.last_started + i + 1))
        moved = np.diff(targets, axis=0, prepend=self.motion.origin[None])
        return plan.last_started, targets, moved / seconds(plan.dt_ns)

    def _position(self, plan_ns: int, slope: float) -> tuple[F64, F64]:
        plan = self.active
        if plan is None:
            return self.motion.resting(self.clock.now_ns)
        begun = plan.last_started >= plan.first
        passed = (plan_ns - plan.row_ns(plan.last_started)) / plan.dt_ns if begun else 1.0
        return self.motion.at(min(passed, 1.0), slope, seconds(plan.dt_ns))

    def _run(self, now_ns: int, to_ns: int, measured: F64) -> None:
        """Start every row that begins before ``to_ns``."""
        plan = self.active
        while plan is not None and plan.last_started + 1 < plan.stop:
            row = plan.last_started + 1
            if to_ns <= max(plan.row_ns(row), plan.begun_ns):
                return
            self.motion.enter(self._step(plan, row), measured, self._chunk_start)
            plan.last_started = row
            self.count.ages_s.append(seconds(now_ns - plan.chunk.observation_stamp_ns))
            if self._merged_velocity is not None:
                self._count_merge(self._merged_velocity, seconds(plan.dt_ns))
                self._merged_velocity = None

    def _step(self, plan: Plan, row: int) -> Step:
        values, following = self.rows.row(plan, row, self.next), None
        if row + 1 < plan.known:  # what blending and correcting add changes little in a row
            following = plan.actions[row + 1] + (values - plan.actions[row])
        skipped = max(0.0, (plan.begun_ns - plan.row_ns(row)) / plan.dt_ns)
        return Step(values, following, plan.row_ns(row + 1), plan.dt_ns, skipped)

    def _switch(self, plan_ns: int, measured: F64, slope: float) -> None:
        old, new = self.active, self.next
        assert new is not None
        anchor, velocity = self._meeting(plan_ns, measured, slope)
        self._merged_velocity = None if old is None else self.motion.pace(seconds(old.dt_ns))
        if old is not None:
            self._retire(old, plan_ns)
            if old.decision.cut:  # older chunks know as little as it of what has happened
                self.rows.keep(new)
        self.motion.start(anchor, velocity * seconds(new.dt_ns))
        self.motion.merge.begin(plan_ns, anchor, old, new)
        pose = self.poses.at(new.chunk.start_ns)
        self._chunk_start = measured if pose is None else pose[0]
        self.active, self.next = new, None

    def _meeting(self, plan_ns: int, measured: F64, slope: float) -> tuple[F64, F64]:
        """Return where a plan that takes over begins, and the velocity there by plan time."""
        motion = self.motion
        if self.active is not None:
            return self._position(plan_ns, 1.0)
        if motion.commanded is None:
            return measured, np.zeros_like(measured)
        if not motion.stopping or slope == 0.0:
            return motion.commanded, np.zeros_like(measured)
        _, velocity = motion.resting(self.clock.now_ns)
        limit = motion.columns.limits['max_velocity']  # plan time may just have slowed a lot
        return motion.commanded, np.clip(velocity / slope, -limit, limit)

    def _count_merge(self, old: F64, dt_s: float) -> None:
        motion, limits = self.motion.columns.motion, self.motion.columns.limits
        change = np.abs(self.motion.pace(dt_s) - old)[motion]
        step = float(np.max(change / limits['max_velocity'][motion], initial=0.0))
        jerk = float(np.max(change / dt_s**2 / limits['max_jerk'][motion], initial=0.0))
        self.count.merges += 1
        self.count.largest_merge_step = max(self.count.largest_merge_step, step)
        self.count.largest_merge_jerk = max(self.count.largest_merge_jerk, jerk)

    def _extend(self, plan: Plan) -> bool:
        if plan.decision.cut or plan.stop >= min(plan.known, plan.limit):
            return False
        plan.stop += 1
        plan.decision = replace(plan.decision, chosen=plan.stop, reason='late')
        self.decide(plan.decision)
        return True

    def _exhaust(self, since_ns: int, slope: float) -> None:
        plan = self.active
        assert plan is not None
        target, velocity = self.motion.at(1.0, slope, seconds(plan.dt_ns))
        self.motion.commanded = target
        self._retire(plan, plan.end_ns)
        self.active, self.ended = None, plan
        self.motion.stop(since_ns, velocity if self._decelerate else None)

    def _retire(self, plan: Plan, plan_ns: int | None = None) -> None:
        ran = plan.rows_run(self.clock.plan_ns if plan_ns is None else plan_ns)
        self.count.rows_accepted += plan.chunk.horizon
        self.count.rows_late += plan.rows_late
        self.count.rows_run += 0.0 if plan is self.next else ran
