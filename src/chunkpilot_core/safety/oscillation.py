"""Chunks that go to and fro without getting anywhere (D15)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime.detector import Detector, slowed
from chunkpilot_core.safety.runtime.moments import Moment, Record
from chunkpilot_core.types import F64, Reaction
import numpy as np

OWN_AMPLITUDE = 0.02  # of the velocity limits, where nothing is calibrated
QUANTILE = 0.99
MIN_ROWS = 4


class Oscillation(Detector):
    """
    Slows the arm down, and rejects chunks when that goes on.

    The score is the largest share of steps at which a column changes direction, of columns that do
    so by more than twice the normal amplitude.
    """

    @dataclass(frozen=True)
    class Config(Detector.Config):
        """What is to and fro."""

        flips: float = option(
            0.6, 'steps of a chunk at which the direction changes', min=0.1, max=1.0
        )
        rejected: int = option(3, 'chunks in a row that are rejected', min=2, max=100)

    name = 'oscillation'
    conformal = False
    config: Config

    def fit(self, records: Sequence[Record]) -> dict[str, Any]:
        """Return the amplitude of normal changes of direction, shape (M,)."""
        seen = [_amplitude(moment.velocities) for r in records for moment in r.moments]
        return {'amplitude': np.quantile(np.array(seen), QUANTILE, axis=0).tolist()}

    def own_threshold(self) -> float:
        """Return the share that is too large."""
        return self.config.flips

    def score(self, moment: Moment) -> float:
        """Return the share of changes of direction."""
        velocities = moment.velocities
        if len(velocities) < MIN_ROWS:
            return float('nan')
        fitted = self.part.statistics if self.part else None
        normal = np.array(fitted['amplitude']) if fitted else np.zeros(velocities.shape[1])
        if normal.shape != (velocities.shape[1],):
            return float('nan')
        flips = np.sign(velocities[1:]) * np.sign(velocities[:-1]) < 0.0
        large = _amplitude(velocities) > np.maximum(2.0 * normal, OWN_AMPLITUDE)
        return float((flips.mean(axis=0) * large).max(initial=0.0))

    def object(self, score: float, threshold: float) -> Finding:
        """Slow down, then reject."""
        count = self.hysteresis.count
        reason = f'{count} chunks in a row go to and fro'
        found = Finding(Reaction.REJECT_CHUNK, reason, 'chunk', score, threshold)
        return found if count >= self.config.rejected else slowed(found)


def _amplitude(velocities: F64) -> F64:
    """Return how much each column changes at a change of direction, shape (M,)."""
    change = np.abs(np.diff(velocities, axis=0))
    flips = np.sign(velocities[1:]) * np.sign(velocities[:-1]) < 0.0
    total = (change * flips).sum(axis=0)
    mean: F64 = 0.5 * total / np.maximum(flips.sum(axis=0), 1)
    return mean
