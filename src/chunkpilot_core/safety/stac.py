"""
Predictions whose distribution changes from chunk to chunk (D9): STAC.

Sentinel (arXiv 2410.04640): the maximum mean discrepancy between the samples of a chunk and those
of the one before, where they overlap in time, summed up over the episode. RBF kernel, its width
the median distance; squared and biased, so never negative.
"""

from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime.detector import Detector
from chunkpilot_core.safety.runtime.moments import Moment
from chunkpilot_core.types import F32, F64, Reaction
import numpy as np

MAX_SAMPLES = 32  # 0.6 ms; the cost grows with the square


class Stac(Detector):
    """Asks for another chunk, and holds when that does not help."""

    name = 'stac'
    paced = True
    _sum = 0.0

    def score(self, moment: Moment) -> float:
        """Return the sum so far."""
        before, shift = moment.before, moment.shift
        if moment.chunk.samples is None or before is None or before.samples is None or shift < 0:
            return float('nan')
        rows = min(before.horizon - shift, moment.chunk.horizon)
        old = _flat(before.samples[:MAX_SAMPLES, shift : shift + rows], moment)
        new = _flat(moment.chunk.samples[:MAX_SAMPLES, :rows], moment)
        if not (np.isfinite(old).all() and np.isfinite(new).all()):
            return float('inf')  # this chunk only: a sum would never get over it
        self._sum += discrepancy(old, new)
        return self._sum

    def object(self, score: float, threshold: float) -> Finding:
        """Ask for another chunk the first time."""
        reaction = Reaction.REPLAN if self.hysteresis.count <= 2 else Reaction.HOLD
        reason = 'samples of successive chunks are distributed differently'
        return Finding(reaction, reason, 'samples', score, threshold)

    def reset(self) -> None:
        """Begin a new sum."""
        super().reset()
        self._sum = 0.0


def discrepancy(one: F64, other: F64) -> float:
    """Return MMD^2 of two sets of samples (N, D) and (M, D)."""
    both = np.concatenate((one, other))
    squares = np.einsum('ij,ij->i', both, both)
    distance = np.maximum(squares[:, None] + squares[None] - 2.0 * both @ both.T, 0.0)
    width = float(np.median(distance))
    if width <= 0.0:
        return 0.0
    kernel = np.exp(-distance / width)
    n = len(one)
    inside = kernel[:n, :n].mean() + kernel[n:, n:].mean()
    return max(float(inside - 2.0 * kernel[:n, n:].mean()), 0.0)


def _flat(samples: F32, moment: Moment) -> F64:
    scaled = samples[:, :, moment.scale.columns] * moment.scale.weights
    flat: F64 = scaled.reshape(len(samples), -1)
    return flat
