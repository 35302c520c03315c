"""How smooth a sampled motion is."""

import math

from chunkpilot_core.types import F64
import numpy as np


def jerk(positions: F64, dt_s: float) -> tuple[float, float]:
    """
    Return peak and root mean square of the jerk of a path [m/s3].

    :param positions: shape (K, 3) [m], one per control tick
    :returns: NaN for fewer than 4 positions
    """
    if len(positions) < 4:
        return math.nan, math.nan
    third = np.linalg.norm(np.diff(positions, n=3, axis=0), axis=1) / dt_s**3
    return float(third.max()), float(np.sqrt(np.mean(third**2)))
