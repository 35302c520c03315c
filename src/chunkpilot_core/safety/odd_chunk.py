"""
Chunks unlike those of successful episodes (D12).

The Mahalanobis distance of the rows together with what was observed, so that a chunk that would be
normal elsewhere is odd here; rows beyond the range of normal ones by 20 % are odd in any case. A
chunk that does nothing is the freeze detector's business, which is more patient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime import mahalanobis
from chunkpilot_core.safety.runtime.detector import Detector
from chunkpilot_core.safety.runtime.moments import Moment, Record
from chunkpilot_core.types import F64, Reaction
import numpy as np

ROWS = 8  # of a chunk that are looked at, evenly spread
MARGIN = 0.2  # of the range
NOTHING = 0.005  # of the way of a normal chunk


class OddChunk(Detector):
    """Rejects a chunk; the first is one too many, as no row of it may run."""

    @dataclass(frozen=True)
    class Config(Detector.Config):
        """Hysteresis."""

        trigger: int = option(1, 'chunks in a row over the threshold that alarm', min=1, max=100)
        release: int = option(1, 'chunks in a row below it that end that', min=1, max=100)

    name = 'odd_chunk'
    config: Config
    _distance: mahalanobis.Distance | None = None
    _fitted: Any = None

    def fit(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return range, mean and spread of chunks."""
        moments = [moment for record in records for moment in record.moments]
        if not moments or any(m.state.shape != moments[0].state.shape for m in moments):
            return {}
        rows = np.concatenate([moment.chunk.actions for moment in moments])
        low, high = rows.min(axis=0), rows.max(axis=0)
        slack = MARGIN * np.maximum(high - low, 1e-6)
        fitted = mahalanobis.fit(np.array([_features(moment) for moment in moments]))
        way = float(np.median([moment.way for moment in moments]))
        return {
            **fitted,
            'way': way,
            'lower': (low - slack).tolist(),
            'upper': (high + slack).tolist(),
        }

    def score(self, moment: Moment) -> float:
        """Return the distance, infinity for rows out of range."""
        fitted = self.part.statistics if self.part else None
        if not fitted:
            return float('nan')
        actions = moment.chunk.actions
        size = len(fitted['lower'])
        if not self.fits('rows have', actions.shape[1], size):
            return float('nan')
        if moment.way < NOTHING * fitted['way']:
            return float('nan')
        if np.any((actions < fitted['lower']) | (actions > fitted['upper'])):
            return float('inf')
        seen = len(fitted['mean']) - ROWS * size
        if not self.fits('the observation has', moment.state.size, seen):
            return float('nan')
        if self._distance is None or self._fitted is not fitted:
            self._distance, self._fitted = mahalanobis.Distance(fitted), fitted
        return self._distance(_features(moment))

    def object(self, score: float, threshold: float) -> Finding:
        """Reject it."""
        reason = 'the chunk is unlike those of successful episodes'
        return Finding(Reaction.REJECT_CHUNK, reason, 'chunk', score, threshold)


def _features(moment: Moment) -> F64:
    """Return some rows and the state as one vector."""
    actions = moment.chunk.actions
    chosen = np.linspace(0, len(actions) - 1, ROWS).round().astype(int)
    return np.concatenate((actions[chosen].ravel(), moment.state)).astype(np.float64)
