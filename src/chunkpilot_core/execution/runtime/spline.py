"""
Cubic pieces through successive targets: continuous velocity, and never past a target that turns.

Monotone cubic interpolation (Fritsch and Carlson, SIAM J. Numer. Anal. 17, 1980, p. 238) with the
mean of both neighbours' pace as velocity at a border, which is exact for a constant acceleration.
It looks only one row ahead, so that it can run while the rows arrive.
Arrays are (T,); a pace or velocity is the distance per row.
"""

from chunkpilot_core.types import F64
import numpy as np


def border_velocity(pace: F64, ahead: F64) -> F64:
    """
    Return the velocity (T,) between a row that moves by ``pace`` and one that moves by ``ahead``.

    It is 0 where the motion turns or ends, and at most 3 times the slower pace: beyond that a
    cubic would pass its own end.
    """
    mean = np.where(pace * ahead > 0.0, 0.5 * (pace + ahead), 0.0)
    bound = 3.0 * np.minimum(np.abs(pace), np.abs(ahead))
    velocity: F64 = np.clip(mean, -bound, bound)
    return velocity


def piece(u: float, moved: F64, start: F64, end: F64) -> tuple[F64, F64]:
    """
    Return how far (T,) a cubic is at ``u`` of its way, 0 to 1, and its derivative by ``u``.

    :param moved: shape (T,), how far it is at 1
    :param start: shape (T,), derivative by ``u`` at 0
    :param end: shape (T,), derivative by ``u`` at 1
    """
    lead = start - moved
    bend = start + end - 2.0 * moved
    distance = u * moved + u * (1.0 - u) * (lead - bend * u)
    return distance, moved + lead * (1.0 - 2.0 * u) - bend * u * (2.0 - 3.0 * u)
