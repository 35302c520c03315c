"""
Chunks that contradict the ones before them (D8).

Where two chunks overlap in time they should say the same (Sentinel, arXiv 2410.04640, with one
sample): the score is the mean difference of their rows, in fractions of the velocity limits.
Slowed, the arm is not where the older chunk thought it would be, so only chunks at full speed are
compared.
"""

from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime.detector import Detector, slowed
from chunkpilot_core.safety.runtime.moments import Moment
from chunkpilot_core.types import Reaction
import numpy as np

MIN_ROWS = 2


class Consistency(Detector):
    """Slows the arm down while chunks contradict each other."""

    name = 'consistency'
    varying = True
    paced = True

    def score(self, moment: Moment) -> float:
        """Return the mean difference of the rows that both chunks have."""
        shift, before = moment.shift, moment.before
        if shift < 0 or before is None:
            return float('nan')
        rows = min(before.horizon - shift, moment.chunk.horizon)
        if rows < MIN_ROWS:
            return float('nan')
        columns = moment.scale.columns
        apart = moment.chunk.actions[:rows, columns] - before.actions[shift:, columns][:rows]
        return float(np.abs(apart * moment.scale.weights).mean())

    def object(self, score: float, threshold: float) -> Finding:
        """Slow down."""
        reason = f'{self.hysteresis.count} chunks in a row contradict the ones before'
        return slowed(Finding(Reaction.SLOW, reason, 'chunk', score, threshold))
