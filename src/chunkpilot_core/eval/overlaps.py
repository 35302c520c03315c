"""
Where two chunks speak of the same time: how far the replanned rows are from the discarded ones.

The finding that Action Upcycling (arXiv 2609.34911) stands on is that both stay close while the
velocity hardly changes; here it is a figure, the rank correlation of the two.
"""

from dataclasses import dataclass

from chunkpilot_core import smoothness
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.types import ActionChunk, F64, HorizonDecision, PolicySpec
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import spearmanr


@dataclass(frozen=True, slots=True)
class _Laid:
    """A chunk's velocities (H, M), its signal from row h on, and when it starts."""

    task_id: str
    start_ns: int
    velocity: F64
    signal: F64


class Overlaps(Fixed):
    """
    Runs h rows of every chunk and compares the rest of it with the next one.

    ``pairs`` holds (fluctuation, distance) of each discarded row that the next chunk planned anew;
    distances are between velocities, in fractions of the limits.
    """

    def __init__(self, config: Fixed.Config | None = None) -> None:
        super().__init__(config)
        self.pairs: list[tuple[float, float]] = []
        self._before: _Laid | None = None

    def configure(self, spec: PolicySpec) -> None:
        """See :meth:`Strategy.configure`."""
        super().configure(spec)
        self._scale = smoothness.motion_scale(spec.space, spec.dt_s)

    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """Return h, and compare."""
        velocity = smoothness.velocities(self._scale, chunk.actions, state.last_row)
        signal = smoothness.fluctuation(velocity, self.base)
        laid = _Laid(chunk.task_id, chunk.start_ns, velocity, signal)
        if self._before is not None and self._before.task_id == chunk.task_id:
            self.pairs += self._compare(self._before, laid, 1e9 * chunk.dt_s)
        self._before = laid
        return super().horizon(chunk, state)

    def _compare(self, old: _Laid, new: _Laid, dt_ns: float) -> list[tuple[float, float]]:
        first = (new.start_ns - old.start_ns) / dt_ns  # row of the old chunk at row 0 of the new
        rows = first + np.arange(len(new.velocity))
        inside = (rows >= self.base) & (rows <= len(old.velocity) - 1)
        rows, again = rows[inside], new.velocity[inside]
        if not len(rows):
            return []
        below = np.minimum(rows.astype(int), len(old.velocity) - 2)
        share = (rows - below)[:, None]
        meant = (1 - share) * old.velocity[below] + share * old.velocity[below + 1]
        signal = np.interp(rows, np.arange(self.base, len(old.velocity)), old.signal)
        distances = np.linalg.norm(again - meant, axis=1)
        return [(float(c), float(d)) for c, d in zip(signal, distances, strict=True)]


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; NaN where one is constant."""
    values = np.asarray(first, float), np.asarray(second, float)
    if len(values[0]) != len(values[1]) or len(values[0]) < 2:
        return float('nan')
    if any(np.all(one == one[0]) for one in values):  # scipy would warn
        return float('nan')
    return float(spearmanr(*values).statistic)
