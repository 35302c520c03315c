"""Samples of one chunk that disagree: the policy does not know what to do (D10)."""

from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime.detector import Detector, slowed
from chunkpilot_core.safety.runtime.moments import Moment
from chunkpilot_core.types import Reaction
import numpy as np


class Disagreement(Detector):
    """Slows the arm down, and calls somebody."""

    name = 'disagreement'

    def score(self, moment: Moment) -> float:
        """Return the mean spread of the samples, in fractions of the velocity limits."""
        samples = moment.chunk.samples
        if samples is None or len(samples) < 2:
            return float('nan')
        scaled = samples[:, :, moment.scale.columns] * moment.scale.weights
        if not np.isfinite(scaled).all():
            return float('inf')
        return float(scaled.std(axis=0).mean())

    def object(self, score: float, threshold: float) -> Finding:
        """Slow down."""
        reason = 'the samples of the chunk disagree'
        found = Finding(Reaction.SLOW, reason, 'samples', score, threshold, escalate=True)
        return slowed(found)
