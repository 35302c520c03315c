"""What becomes of a policy's answer: a plan with a horizon, better rows of one, or a refusal."""

from dataclasses import replace

from chunkpilot_core import spaces
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime import admission
from chunkpilot_core.execution.runtime.plan import known_rows, late_rows, lay, Plan
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.revision import revised
from chunkpilot_core.execution.runtime.scheduler import Scheduler
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    F32,
    HorizonDecision,
    PolicySpec,
    seconds,
)
import numpy as np


class Intake:
    """Takes the answers of one policy for one queue."""

    def __init__(
        self,
        spec: PolicySpec,
        strategy: Strategy,
        queue: PlanQueue,
        scheduler: Scheduler,
        max_age_s: float,
    ) -> None:
        """
        Serve a policy.

        :param max_age_s: the robot's cap on how old the observation behind a row may be
        """
        self._spec, self._strategy = spec, strategy
        self._queue, self._scheduler = queue, scheduler
        self._max_age_s = max_age_s

    def take(self, chunk: ActionChunk, request: ChunkRequest, now_ns: int) -> str | None:
        """
        Take the answer to a request that is open, or some rows of it.

        :returns: why it is refused, or None
        """
        running = self._queue.last
        begun = self._queue.find(request.id)
        newest_ns = running.chunk.observation_stamp_ns if running and not begun else 0
        reason = admission.refusal(
            chunk, request, self._spec, now_ns, newest_ns, first=begun is None
        )
        if reason is None and begun is not None:
            return self._revise(begun, chunk, request, now_ns)
        if reason is None and not chunk.final and known_rows(chunk) <= self._late(chunk, now_ns):
            self._scheduler.requests.heard(request.id, now_ns, accepted=False)
            return None  # nothing of it can run yet
        if reason is None:
            reason = self._plan(chunk, now_ns)
        if reason is None:
            self._scheduler.accepted(request, now_ns, final=chunk.final)
        else:
            self._scheduler.refused(request, now_ns)
        return reason

    def _plan(self, chunk: ActionChunk, now_ns: int) -> str | None:
        """Decide the horizon of a valid chunk and queue it, or say why it comes too late."""
        queue, max_age_s = self._queue, self._max_age_of(chunk)
        age_s = seconds(now_ns - chunk.observation_stamp_ns)
        if age_s > max_age_s:
            return f'its observation is {age_s:.3f} s old, allowed are {max_age_s:.3f} s'
        decided = self._decide(chunk, self._late(chunk, now_ns), max_age_s, now_ns)
        if isinstance(decided, str):
            return decided
        chunk, decision = decided
        start_ns, plan_ns = queue.plan_at(chunk.start_ns), queue.plan_at(now_ns)
        queue.push(lay(chunk, start_ns, plan_ns, decision, max_age_s))
        queue.decide(decision)
        self._queue.count.chunks_accepted += 1
        self._queue.count.chosen_rows += decision.chosen
        return None

    def _revise(
        self, plan: Plan, chunk: ActionChunk, request: ChunkRequest, now_ns: int
    ) -> str | None:
        """Take later rows of a chunk that runs, or say why there are none; it is no new chunk."""
        if plan.guided:  # not the chunk's own rows run
            self._scheduler.continued(request, now_ns, final=chunk.final)
            return None
        changed = revised(plan.chunk, chunk, plan.last_started + 1)
        if isinstance(changed, str):
            return changed
        max_age_s = self._max_age_of(changed)
        decided = self._decide(changed, max(plan.last_started, plan.first), max_age_s, now_ns)
        if not isinstance(decided, str):
            changed, decision = decided
            decision = self._queue.bounded(plan, decision)
            if (decision.chosen, decision.reason) != (plan.stop, plan.decision.reason):
                self._queue.decide(decision)
            self._queue.count.chosen_rows += decision.chosen - plan.decision.chosen
            plan.max_age_s = max_age_s
            self._queue.revise(plan, changed, decision)
        self._scheduler.continued(request, now_ns, final=changed.final)
        return decided if isinstance(decided, str) else None

    def _late(self, chunk: ActionChunk, now_ns: int) -> int:
        """Return how many rows of a chunk are over; the last one may always run."""
        queue = self._queue
        late = late_rows(chunk, queue.plan_at(chunk.start_ns), queue.plan_at(now_ns))
        return min(late, chunk.horizon - 1)

    def _max_age_of(self, chunk: ActionChunk) -> float:
        own_s = chunk.max_row_age_s or self._spec.max_row_age_s
        return min(own_s or chunk.horizon * chunk.dt_s + 0.5, self._max_age_s)

    def _decide(
        self, chunk: ActionChunk, late: int, max_age_s: float, now_ns: int
    ) -> tuple[ActionChunk, HorizonDecision] | str:
        """Return a chunk as it is to be run, and its horizon; or why none of it may run."""
        allowed, limit = admission.allowed_rows(chunk, max_age_s)
        if allowed <= late:
            return f'{limit}: {allowed} rows may run, {late} are late'
        try:
            state = self.state(chunk.start_ns, late, now_ns, chunk)
            if self._strategy.offers('rows'):
                chunk = replace(chunk, actions=self._strategy.rows(chunk, state))
                chunk.validate(self._spec.space)
            decision = self._strategy.horizon(chunk, state)
        except ChunkpilotError as error:
            return f'strategy {self._strategy.name}: {error}'
        if decision.chosen > allowed:
            decision = replace(decision, chosen=allowed, reason=limit)
        elif decision.chosen <= late:
            decision = replace(decision, chosen=late + 1, reason='late rows')
        return chunk, decision

    def state(
        self, start_ns: int, late: int, now_ns: int, chunk: ActionChunk | None = None
    ) -> ExecutionState:
        """
        Return what a strategy may know.

        :param start_ns: when the chunk in question starts
        :param late: rows of it that are over
        """
        space = self._spec.space
        pose = self._queue.poses.at(start_ns)
        last_row: F32 = np.zeros(space.size, np.float32)
        if pose is not None:
            last_row = spaces.to_row(space, pose[1], pose[1])
        return ExecutionState(
            now_ns,
            last_row,
            late,
            self._scheduler.delays.value_s,
            self._queue.remaining_rows,
            self._queue.previous(chunk) if chunk is not None else None,
        )
