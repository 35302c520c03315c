"""When to ask the policy, and for what."""

from dataclasses import replace

from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.runtime.gate import Gate
from chunkpilot_core.execution.runtime.plan import late_rows, Plan
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.requests import Requests
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.timing import DelayEstimator
from chunkpilot_core.types import ChunkRequest, nanoseconds, PolicySpec, seconds


class Scheduler:
    """Asks so that the answer is there before the horizon ends; one or two requests at a time."""

    def __init__(self, strategy: Strategy, config: ExecutionConfig, session: int) -> None:
        self.requests = Requests(session)
        self.delays = DelayEstimator(
            config.delay_window, config.delay_quantile, config.initial_delay_s
        )
        self._strategy = strategy
        self._config = config
        self._reason = 'start'
        self._urgent = False
        self._samples = 1
        self._retry_ns = 0
        self._ahead = False  # chunks begin about when they arrive, not when they are observed
        self._asked_ns = -(1 << 62)  # when the newest request was sent
        self._horizon_ns = 0  # of the plan in force, or the one before

    def ask_for_samples(self, count: int) -> None:
        """Ask for at least so many samples the next time, of which one may do."""
        self._samples = count

    def restart(self, reason: str, *, urgent: bool = False) -> None:
        """
        Forget what is under way: its answer no longer fits.

        :param reason: of the next request
        :param urgent: ask at the next tick, whatever is left to run
        """
        self.requests.drop()
        self._reason, self._urgent, self._retry_ns = reason, urgent, 0

    def accepted(self, request: ChunkRequest, now_ns: int, *, final: bool = True) -> None:
        """
        Note an answer that runs, or its first rows.

        :param final: whether no more rows of it are to come
        """
        self.delays.add(seconds(now_ns - request.stamp_ns))
        self.continued(request, now_ns, final=final)

    def continued(self, request: ChunkRequest, now_ns: int, *, final: bool) -> None:
        """Note rows of an answer that came in parts."""
        if final:
            self.requests.close(request.id, accepted=True)
        else:
            self.requests.heard(request.id, now_ns)

    def refused(self, request: ChunkRequest, now_ns: int) -> None:
        """Note an answer that must not run; the policy gets a pause before it is asked again."""
        self.requests.close(request.id, accepted=False)
        self._retry_ns = now_ns + nanoseconds(self._config.retry_s)

    def overtaken(self, request: ChunkRequest, now_ns: int) -> None:
        """Note an answer that a newer one has overtaken: slow answers count as delays too."""
        self.delays.add(seconds(now_ns - request.stamp_ns))

    def slope(self, scale: float, queue: PlanQueue, now_ns: int) -> float:
        """Return plan time per ROS time: the guard's scale, lowered where `stretch` waits."""
        awaited = self.requests.awaited
        if self._config.starvation != 'stretch' or not awaited or queue.next is not None:
            return scale
        period_ns = nanoseconds(self._config.period_s)
        answer_ns = awaited[0].stamp_ns + nanoseconds(self.delays.value_s) + period_ns
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
        under_way = self.requests.under_way
        if under_way >= self._config.in_flight or now_ns < self._retry_ns:
            return None
        if self._config.in_flight > 1 and not self._spaced(now_ns, queue, under_way):
            return None
        asked = state is not None and self._strategy.wants_chunk(state)
        if not (asked or self._urgent or self._due(queue, scale)):
            return None
        request = self._with_prefix(self._make(now_ns, queue, gate, spec), queue)
        request = self._strategy.ask(request)
        self.requests.sent(request)
        self._asked_ns = now_ns
        self._reason, self._urgent, self._samples = '', False, 1
        return request

    def _spaced(self, now_ns: int, queue: PlanQueue, under_way: int) -> bool:
        """
        Whether one of two requests may leave now.

        Half a delay after the one before, so that answers come evenly spaced, and only if enough
        rows have run since: chunks that are observed at the same place reach equally far.
        """
        if not under_way and (self._urgent or not queue.remaining_ns):
            return True
        apart_ns = nanoseconds(0.5 * self.delays.at(0.5))
        if queue.last is not None:
            self._horizon_ns = queue.last.stop * queue.last.dt_ns
        gain_ns = min(apart_ns, self._horizon_ns // 3)
        ran_ns = queue.clock.plan_ns - queue.plan_at(self._asked_ns)
        passed = now_ns - self._asked_ns >= apart_ns or not under_way
        return passed and ran_ns >= gain_ns and (self.delays.warm or not under_way)

    def _due(self, queue: PlanQueue, scale: float) -> bool:
        """Whether waiting for the next tick would let the rows run out before an answer."""
        plan = queue.last
        if plan is None:
            return True
        self._ahead = plan.chunk.start_ns - plan.chunk.observation_stamp_ns >= plan.dt_ns
        lead_s = self._lead_s(seconds(plan.stop * plan.dt_ns), scale)
        end_ns = self._covered_ns(plan, queue)
        return end_ns - queue.clock.plan_ns < nanoseconds(lead_s + scale * self._config.period_s)

    def _covered_ns(self, plan: Plan, queue: PlanQueue) -> int:
        """Return until when rows are there once what is awaited has come [plan ns]."""
        end_ns, awaited = plan.end_ns, self.requests.awaited
        if awaited:
            length = self._strategy.base if plan.decision.cut else plan.stop
            end_ns = max(end_ns, queue.plan_at(awaited[-1].stamp_ns) + length * plan.dt_ns)
        return end_ns

    def _lead_s(self, horizon_s: float, scale: float) -> float:
        """
        Return how much must be left to run when the next request leaves [s of plan time].

        What an answer takes, with a margin, where the horizon allows. Where it does not, some
        starvation can't be avoided; it is least when asked at half of the horizon (a little
        earlier where delays vary) or, with two requests, as early as they are evenly spaced; or
        at its end where even a delay alone is longer, since nothing is late while the arm rests.
        """
        config, delays = self._config, self.delays
        planned_s, median_s = scale * delays.value_s, scale * delays.at(0.5)
        reserve_s = scale * config.margin_ticks * config.period_s
        wait_s = planned_s + max(config.margin * planned_s, reserve_s)
        if horizon_s >= 2.0 * wait_s or self._ahead:  # then no row is late
            return min(wait_s, horizon_s)
        if config.alignment == 'time' or config.starvation == 'stretch':
            return min(wait_s, horizon_s)
        shortest_s = median_s if config.in_flight == 1 else 0.5 * median_s
        if delays.warm and horizon_s <= shortest_s:
            return 0.0
        if config.in_flight > 1 and delays.warm:
            return wait_s
        spread_s = min(planned_s - median_s, horizon_s / 6.0)
        return min(wait_s, horizon_s / 2.0 + spread_s)

    def shortage(self, horizon_s: float) -> float:
        """
        Return the share of ticks that will starve with the delay as it is, 0 to 1.

        With n requests in flight a horizon of (1 + 1/n) delays is enough; below that answers
        arrive every 1/n delays, each with rows for horizon / (n + 1). Where even that is less than
        what asking at rest gives, it is asked at rest.

        :param horizon_s: how long the rows of a chunk run
        """
        delay_s, n = self.delays.at(0.5), self._config.in_flight
        if not self.delays.warm or horizon_s >= (1.0 + 1.0 / n) * delay_s:
            return 0.0
        lengths = horizon_s / (delay_s + 0.5 * n * self._config.period_s)  # until a tick takes it
        if self._ahead:  # no row is late, so each delay may use up a whole horizon
            return max(0.0, 1.0 - n * lengths)
        if self._config.alignment == 'time':
            return min(1.0, n + 1.0 - n * lengths)
        return min(1.0 - lengths * n / (n + 1.0), 1.0 / (1.0 + lengths))

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
            n_samples=max(self._strategy.n_samples, self._samples),
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
