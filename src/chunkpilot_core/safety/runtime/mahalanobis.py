"""How far a vector is from those that were seen before."""

from collections.abc import Mapping
from typing import Any

from chunkpilot_core.types import F64
import numpy as np

SHRINKAGE = 0.1  # towards independent entries: few samples of many dimensions
FLOOR = 1e-3  # of a spread: what never changed in calibration may change a little


def fit(vectors: F64) -> dict[str, Any]:
    """
    Return mean, spread and a whitening of samples as plain lists.

    :param vectors: shape (N, D); NaN = unknown
    """
    known = np.isfinite(vectors)
    always = known.all(axis=0)
    mean = np.where(known.any(axis=0), np.nanmean(np.where(known, vectors, np.nan), axis=0), 0.0)
    filled = np.where(known, vectors, mean)
    spread = np.maximum(filled.std(axis=0), FLOOR)
    standard = (filled - mean) / spread
    covariance = (1.0 - SHRINKAGE) * (standard.T @ standard) / len(standard)
    covariance += SHRINKAGE * np.eye(len(mean))
    whitening = np.linalg.inv(np.linalg.cholesky(covariance))
    return {
        'mean': _plain(mean),
        'spread': _plain(spread),
        'always': always.tolist(),
        'whitening': [_plain(row) for row in whitening],
    }


class Distance:
    """Mahalanobis distance per root of the dimensions, of a fit as lists."""

    def __init__(self, fitted: Mapping[str, Any]) -> None:
        self._mean, self._spread = np.array(fitted['mean']), np.array(fitted['spread'])
        self._always = np.array(fitted['always'], bool)
        self._whitening = np.array(fitted['whitening'])

    def __call__(self, vector: F64) -> float:
        """
        Return the distance of a vector (D,); about 1 is normal.

        NaN where another size was fitted, infinity where something is unknown that never was.
        """
        if vector.shape != self._mean.shape:
            return float('nan')
        known = np.isfinite(vector)
        if np.any(self._always & ~known):
            return float('inf')
        away = np.where(known, vector - self._mean, 0.0) / self._spread
        white = self._whitening @ away
        return float(np.sqrt(white @ white / len(white)))


def _plain(values: F64) -> list[float]:
    return [float(f'{value:.6g}') for value in values]
