"""
Observations unlike those of successful episodes (D11).

The Mahalanobis distance of state and features; where the policy has a measure of its own (an error
of random network distillation, a distance in its embedding), it says so in the chunk's diagnostics
under ``observation_novelty``, and that counts instead.
"""

from collections.abc import Sequence
from typing import Any

from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime import mahalanobis
from chunkpilot_core.safety.runtime.detector import Detector
from chunkpilot_core.safety.runtime.moments import Moment, Record
from chunkpilot_core.types import Reaction
import numpy as np

DIAGNOSTIC = 'observation_novelty'


class OddObservation(Detector):
    """Calls somebody: what is odd is not yet wrong."""

    name = 'odd_observation'
    _distance: mahalanobis.Distance | None = None
    _fitted: Any = None

    def fit(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return mean and spread of what was observed."""
        states = [moment.state for record in records for moment in record.moments]
        if not states or not states[0].size or any(s.shape != states[0].shape for s in states):
            return {}
        return mahalanobis.fit(np.array(states, np.float64))

    def score(self, moment: Moment) -> float:
        """Return the distance, or what the policy itself says."""
        own = self.said(moment, DIAGNOSTIC)
        if own is not None:
            return own
        fitted = self.part.statistics if self.part else None
        if not fitted:
            return float('nan')
        if not self.fits('the observation has', moment.state.size, len(fitted['mean'])):
            return float('nan')
        if self._distance is None or self._fitted is not fitted:
            self._distance, self._fitted = mahalanobis.Distance(fitted), fitted
        return self._distance(moment.state.astype(np.float64))

    def object(self, score: float, threshold: float) -> Finding:
        """Call somebody."""
        reason = 'the observation is unlike those of successful episodes'
        return Finding(Reaction.PASS, reason, 'observation', score, threshold, escalate=True)
