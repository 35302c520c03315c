"""When to ask the policy, and for what."""

from dataclasses import replace

from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime.gate import Gate
from chunkpilot_core.execution.runtime.plan import late_rows
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.requests import Requests
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.timing import DelayEstimator
from chunkpilot_core.types import ChunkRequest, nanoseconds, PolicySpec, seconds


class Scheduler:
    """Asks so that the answer is there before the horizon ends; one request at a time."""

    def __init__(self, strategy: Strategy, config: ExecutionConfig, session: int) -> None:
        self.requests = Requests(session)
        self.delays = DelayEstimator(
            config.delay_window, config.delay_quantile, config.initial_delay_s
        )
        self._strategy = strategy
        self._config = config
        self._reason = 'start'
        self._urgent = False
        self._retry_ns = 0

    def restart(self, reason: str, *, urgent: bool = False) -> None:
        """
        Forget what is under way: its answer no longer fits.

        :param reason: of the next request
        :param urgent: ask at the next tick, whatever is left to run
        """
        self.requests.drop()
        self._reason, self._urgent, self._retry_ns = reason, urgent, 0

    def accepted(self, request: ChunkRequest, now_ns: int) -> None:
        """Note an answer that runs."""
        self.requests.close(request.id, accepted=True)
        self.delays.add(seconds(now_ns - request.stamp_ns))

    def refused(self, request: ChunkRequest, now_ns: int) -> None:
        """Note an answer that must not run; the policy gets a pause before it is asked again."""
        self.requests.close(request.id, accepted=False)
        self._retry_ns = now_ns + nanoseconds(self._config.retry_s)

    def slope(self, scale: float, queue: PlanQueue, now_ns: int) -> float:
        """Return plan time per ROS time: the guard's scale, lowered where `stretch` waits."""
        request = self.requests.in_flight
        if self._config.starvation != 'stretch' or request is None or queue.next is not None:
            return scale
        period_ns = nanoseconds(self._config.period_s)
        answer_ns = request.stamp_ns + nanoseconds(self.delays.value_s) + period_ns
        wait_ns = max(answer_ns - now_ns, 0) + period_ns
        needed = queue.remaining_ns / (max(scale, 1e-6) * wait_ns)
        return scale * min(1.0, max(needed, self._config.min_stretch))

    def request(
        self,
        now_ns: int,
        scale: float,
        queue: PlanQueue,
        gate: Gate,
        spec: PolicySpec,
        state: ExecutionState | None,
    ) -> ChunkRequest | None:
        """
        Return the request to send now, if any.

        :param state: for strategies that decide themselves when to ask
        """
        timeout_s = max(self._config.request_timeout_s, 3.0 * self.delays.value_s)
        self.requests.expire(now_ns, timeout_s)
        if self.requests.in_flight is not None or now_ns < self._retry_ns:
            return None
        asked = state is not None and self._strategy.wants_chunk(state)
        if not (asked or self._urgent or self._due(queue, scale)):
            return None
        request = self._with_prefix(self._make(now_ns, queue, gate, spec), queue)
        self.requests.sent(request)
        self._reason, self._urgent = '', False
        return request

    def _due(self, queue: PlanQueue, scale: float) -> bool:
        """
        Whether waiting for the next tick would let the rows run out before an answer.

        Where the horizon is shorter than twice the delay some starvation can't be avoided; it is
        least when asked at half of the horizon, or at its end where even one delay is longer (half
        is also the guess where only a cold start is known).
        """
        plan, config = queue.last, self._config
        if plan is None:
            return True
        wait_s = scale * self.delays.value_s * (1.0 + config.margin)
        horizon_s = seconds(plan.stop * plan.dt_ns)
        if horizon_s < 2.0 * wait_s:
            halving = horizon_s > wait_s or not self.delays.warm or config.starvation == 'stretch'
            wait_s = horizon_s / 2.0 if halving else 0.0
        return queue.remaining_ns < nanoseconds(wait_s + scale * config.period_s)

    def _make(self, now_ns: int, queue: PlanQueue, gate: Gate, spec: PolicySpec) -> ChunkRequest:
        delay_s, plan, clock = self.delays.value_s, queue.last, queue.clock
        start_ns = now_ns + nanoseconds(delay_s)
        if plan is not None:  # at the first row boundary then
            row = min(late_rows(plan.chunk, plan.start_ns, self._answer_ns(queue)), plan.stop)
            start_ns = clock.to_ros(max(plan.row_ns(row), clock.plan_ns))
        return ChunkRequest(
            id=self.requests.next_id(),
            stamp_ns=now_ns,
            arm_epoch=gate.arm_epoch,
            task_id=gate.task_id,
            reason=self._reason or ('horizon' if plan else 'starved'),
            start_ns=start_ns,
            not_before_ns=gate.not_before_ns,
            delay_s=delay_s,
            n_samples=self._strategy.n_samples,
            space_hash=spec.space.hash,
        )

    def _answer_ns(self, queue: PlanQueue) -> int:
        """Plan time at which an answer to a request sent now is expected."""
        return queue.clock.plan_ns + round(queue.clock.slope * nanoseconds(self.delays.value_s))

    def _with_prefix(self, request: ChunkRequest, queue: PlanQueue) -> ChunkRequest:
        rows, plan = queue.prefix(), queue.active
        if rows is None or plan is None:
            return request
        first, targets, velocities = rows
        committed = min(late_rows(plan.chunk, plan.start_ns, self._answer_ns(queue)), plan.stop)
        return replace(
            request,
            prefix=targets,
            prefix_velocity=velocities,
            prefix_start_ns=queue.clock.to_ros(plan.row_ns(first)),
            prefix_dt_s=seconds(plan.dt_ns),
            committed_rows=max(committed - first, 0),
        )
