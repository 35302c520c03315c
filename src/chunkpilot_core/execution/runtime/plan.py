"""A chunk laid out on plan time."""

from dataclasses import dataclass

from chunkpilot_core.types import ActionChunk, F32, HorizonDecision, nanoseconds
import numpy as np


@dataclass(slots=True)
class Plan:
    """
    Rows ``first`` to ``stop`` - 1 of a chunk; row i runs from ``start_ns`` + i ``dt_ns`` on.

    ``actions`` (H, A) are the chunk's with the learner's residual added; ``last_started`` is the
    row that began last.
    """

    chunk: ActionChunk
    decision: HorizonDecision
    actions: F32
    start_ns: int
    dt_ns: int
    first: int
    stop: int
    max_age_s: float
    last_started: int

    @property
    def end_ns(self) -> int:
        """Plan time at which the horizon ends."""
        return self.row_ns(self.stop)

    @property
    def switch_ns(self) -> int:
        """Plan time at which the first row that is not late begins."""
        return self.row_ns(self.first)

    def row_ns(self, row: int) -> int:
        """Plan time at which a row begins."""
        return self.start_ns + row * self.dt_ns

    def begin_now(self, plan_ns: int) -> None:
        """
        Move so that a row begins at ``plan_ns``: the one that would be under way.

        Used when nothing else runs until the next boundary, so no row is dropped for nothing.
        """
        row = (plan_ns - self.start_ns + self.dt_ns // 1000) // self.dt_ns
        self.first = min(max(row, 0), self.chunk.horizon - 1)
        self.start_ns = plan_ns - self.first * self.dt_ns
        self.stop = max(self.stop, self.first + 1)
        self.last_started = self.first - 1

    def rows_done(self, plan_ns: int) -> int:
        """Return how many rows have run, one under way counting from its half."""
        whole = (plan_ns - self.switch_ns + self.dt_ns // 2) // self.dt_ns
        return int(min(max(whole, 0), self.last_started + 1 - self.first))


def lay(
    chunk: ActionChunk, start_ns: int, plan_ns: int, decision: HorizonDecision, max_age_s: float
) -> Plan:
    """
    Lay a chunk out.

    Rows that began before ``plan_ns`` are late: the plan in force has run their time. Where all
    are late the last one goes to the next slot (Universal Manipulation Interface,
    arXiv 2402.10329), and at least one row runs whatever the horizon says.

    :param start_ns: plan time of row 0
    :param plan_ns: plan time now
    """
    dt_ns = nanoseconds(chunk.dt_s)
    first = late_rows(chunk, start_ns, plan_ns)
    if first >= chunk.horizon:
        first = chunk.horizon - 1
        start_ns = plan_ns - first * dt_ns
    stop = max(decision.chosen, first + 1)
    return Plan(
        chunk,
        decision,
        with_residual(chunk),
        start_ns,
        dt_ns,
        first,
        stop,
        max_age_s,
        first - 1,
    )


def late_rows(chunk: ActionChunk, start_ns: int, plan_ns: int) -> int:
    """Return how many rows began before ``plan_ns``; a thousandth of a row is no lateness."""
    dt_ns = nanoseconds(chunk.dt_s)
    return max(0, -((start_ns - plan_ns + dt_ns // 1000) // dt_ns))


def with_residual(chunk: ActionChunk) -> F32:
    """Return the rows (H, A) with the learner's correction added, clipped to its bound."""
    if chunk.residual is None:
        return chunk.actions
    residual = chunk.residual
    if chunk.residual_bound is not None:
        residual = np.clip(residual, -chunk.residual_bound, chunk.residual_bound)
    return chunk.actions + residual
