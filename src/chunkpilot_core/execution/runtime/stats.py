"""What happened in an episode: counters, and a bounded trace of every tick for plots."""

from collections import deque
from dataclasses import dataclass, field
import math
from typing import Any

from chunkpilot_core.types import ExecutionStats, F64, HorizonDecision
import numpy as np
from numpy.typing import NDArray

AGES = 4096
DECISIONS = 4096


@dataclass(frozen=True, slots=True)
class Trace:
    """
    One episode tick by tick; K ticks, T target columns.

    ``now_ns``, ``plan_ns`` (K,); ``targets`` and ``velocities`` (K, T) as commanded; ``chunks``
    (K,) the seq of the chunk in force (it changes at the borders), 0 = none; ``rows`` (K,) -1 =
    starved; ``extended`` (K,) rows beyond the base horizon; ``decisions`` in order.
    """

    now_ns: NDArray[np.int64]
    plan_ns: NDArray[np.int64]
    targets: F64
    velocities: F64
    chunks: NDArray[np.int64]
    rows: NDArray[np.int64]
    extended: NDArray[np.bool_]
    decisions: tuple[HorizonDecision, ...]


class Recorder:
    """Fills a trace; what does not fit any more is not recorded."""

    def __init__(self, ticks: int, target_size: int) -> None:
        self._integers = np.zeros((ticks, 4), np.int64)
        self._targets = np.zeros((ticks, 2, target_size))
        self._extended = np.zeros(ticks, bool)
        self._decisions: deque[HorizonDecision] = deque(maxlen=DECISIONS)
        self._count = 0

    def clear(self) -> None:
        """Start a new episode."""
        self._count = 0
        self._decisions.clear()

    def tick(
        self, integers: tuple[int, int, int, int], target: F64, velocity: F64, *, extended: bool
    ) -> None:
        """
        Note one command.

        :param integers: ROS time, plan time, seq of the chunk, row
        """
        i = self._count
        if i == len(self._integers):
            return
        self._integers[i] = integers
        self._targets[i, 0] = target
        self._targets[i, 1] = velocity
        self._extended[i] = extended
        self._count += 1

    def decision(self, decision: HorizonDecision) -> None:
        """Note one decision."""
        self._decisions.append(decision)

    def trace(self) -> Trace:
        """Return a copy of what was recorded."""
        n = self._count
        now_ns, plan_ns, chunks, rows = self._integers[:n].T.copy()
        return Trace(
            now_ns,
            plan_ns,
            self._targets[:n, 0].copy(),
            self._targets[:n, 1].copy(),
            chunks,
            rows,
            self._extended[:n].copy(),
            tuple(self._decisions),
        )


@dataclass(slots=True)
class Counters:
    """Counters of one episode; names as in ExecutionStats."""

    since_ns: int = 0
    episode_id: str = ''
    ticks: int = 0
    starved_ticks: int = 0
    late_ticks: int = 0
    worst_lateness_s: float = 0.0
    rows_accepted: int = 0  # of retired chunks, as are the next two
    rows_late: float = 0.0
    rows_run: float = 0.0
    policy_calls: int = 0
    timeouts: int = 0
    chunks_accepted: int = 0
    chunks_rejected: int = 0
    chosen_rows: int = 0
    cuts: int = 0
    interrupts: list[str] = field(default_factory=list)
    reanchors: int = 0
    merges: int = 0
    largest_merge_step: float = 0.0
    largest_merge_jerk: float = 0.0
    first_action_s: float = math.nan
    ages_s: deque[float] = field(default_factory=lambda: deque(maxlen=AGES))

    def age(self, quantile: float) -> float:
        """Return a quantile of the observation's age at the start of rows [s]."""
        return float(np.quantile(self.ages_s, quantile)) if self.ages_s else math.nan

    def summary(self, base: int, **more: Any) -> ExecutionStats:
        """
        Return the statistics.

        :param base: base horizon [rows]
        :param more: fields that are not counted here
        """
        names = set(ExecutionStats.__dataclass_fields__) & set(Counters.__dataclass_fields__)
        counted = {name: getattr(self, name) for name in names}
        fields = {**counted, **more}
        executed = fields['executed_rows']
        return ExecutionStats(
            **fields,
            late_rows=round(self.rows_late),
            discarded_rows=self.rows_accepted - round(self.rows_late) - round(self.rows_run),
            base_horizon=float(base),
            mean_horizon=self.chosen_rows / self.chunks_accepted
            if self.chunks_accepted
            else math.nan,
            calls_saved_ratio=executed / (base * self.policy_calls)
            if self.policy_calls
            else math.nan,
            observation_age_p50_s=self.age(0.5),
            observation_age_p99_s=self.age(0.99),
        )
