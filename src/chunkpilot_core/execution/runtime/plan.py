"""A chunk laid out on plan time."""

from dataclasses import dataclass

from chunkpilot_core.types import ActionChunk, F32, HorizonDecision, nanoseconds
import numpy as np


@dataclass(slots=True)
class Plan:
    """
    Rows ``first`` to ``stop`` - 1 of a chunk; row i runs from ``start_ns`` + i ``dt_ns`` on.

    ``actions`` (H, A) are the chunk's with the learner's residual added; ``last_started`` is the
    row that began last; ``begun_ns`` is when the plan took over, which may be within a row. Of a
    chunk that is still being refined the first ``known`` rows mean something. ``guided`` rows are
    not the chunk's own: what predict_node found better runs instead. ``overtaken``: the scene has
    departed from what the chunk rests on.
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
    begun_ns: int
    known: int
    limit: int = 1 << 30  # rows that may run, whatever comes later of the chunk
    guided: bool = False
    overtaken: bool = False

    @property
    def end_ns(self) -> int:
        """Plan time at which the horizon ends."""
        return self.row_ns(self.stop)

    def row_ns(self, row: int) -> int:
        """Plan time at which a row begins."""
        return self.start_ns + row * self.dt_ns

    def begin_now(self, plan_ns: int) -> None:
        """
        Begin at ``plan_ns`` instead of the next boundary, because nothing else runs until then.

        Of the row that would be under way only the rest is left: as much was run since the
        observation. Rows of the future begin now.
        """
        self.start_ns = min(self.start_ns, plan_ns)
        row = (plan_ns - self.start_ns + self.dt_ns // 1000) // self.dt_ns
        self.first = min(row, self.chunk.horizon - 1)
        if row > self.first:  # all are over: the last one runs now
            self.start_ns = plan_ns - self.first * self.dt_ns
        # Not a nanosecond later, or the queue waits forever; where all are late the last goes now.
        if row > self.first or self.row_ns(self.first) > plan_ns:
            self.start_ns = plan_ns - self.first * self.dt_ns
        self.stop = max(self.stop, self.first + 1)
        self.last_started = self.first - 1
        self.begun_ns = plan_ns

    def rows_run(self, plan_ns: int) -> float:
        """Return how many rows have run."""
        return max(0.0, (plan_ns - self.begun_ns) / self.dt_ns)

    @property
    def rows_late(self) -> float:
        """How many rows were over before the plan took over."""
        return (self.begun_ns - self.start_ns) / self.dt_ns


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
        start_ns + first * dt_ns,
        known_rows(chunk),
    )


def known_rows(chunk: ActionChunk) -> int:
    """Return how many rows, from the first on, may run by the parts of a chunk."""
    known = 0
    for part in sorted(chunk.parts, key=lambda part: part.first_row):
        if part.first_row <= known:
            known = max(known, part.first_row + part.executable_rows)
    return min(known, chunk.horizon) if chunk.parts else chunk.horizon


def late_rows(chunk: ActionChunk, start_ns: int, plan_ns: int) -> int:
    """Return how many rows began before ``plan_ns``; a thousandth of a row is no lateness."""
    dt_ns = nanoseconds(chunk.dt_s)
    return max(0, -((start_ns - plan_ns + dt_ns // 1000) // dt_ns))


def with_residual(chunk: ActionChunk) -> F32:
    """Return the rows (H, A), a copy, with the learner's correction added within its bound."""
    if chunk.residual is None:
        rows: F32 = chunk.actions.copy()
        return rows
    residual = chunk.residual
    if chunk.residual_bound is not None:
        residual = np.clip(residual, -chunk.residual_bound, chunk.residual_bound)
    return chunk.actions + residual
