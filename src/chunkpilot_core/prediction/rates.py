"""
How much slower a path has to run to keep the limits of velocity and acceleration.

Time-scaling keeps the path: at a fraction s of its speed velocities fall by s, accelerations by s
squared (Hollerbach 1984). Jerk is not looked at: at 100 Hz its limit never binds.
"""

from dataclasses import dataclass

from chunkpilot_core.prediction.path import Path
from chunkpilot_core.safety.runtime.limiter import Limiter
import numpy as np

STANDING = 1e-3  # [rad/s]; where no speed is allowed at all, slower than this is none
SEAM_ROWS = 3.0  # over which execution lets a change of velocity at the seam happen


@dataclass(frozen=True, slots=True)
class Rates:
    """``scale`` keeps all limits, from which ``row`` on it is needed, and the worst in words."""

    scale: float
    row: int = -1
    worst: int = -1
    reason: str = ''


def time_scale(path: Path, limiter: Limiter, enough: float) -> Rates:
    """
    Return s* = min(1, 1/r_v, 1/sqrt(r_a)) over the rows, the seam with the present included.

    :param enough: rows that need no slower than this are left as they are
    """
    n = limiter.n_arm
    velocities = path.velocities
    speed = velocities[:, :n]
    before = np.vstack((path.velocity[None, :n], speed[:-1]))
    spans = np.append(
        SEAM_ROWS * path.durations[:1], (path.durations[1:] + path.durations[:-1]) / 2.0
    )
    rate = (speed - before) / spans[:, None]
    limits = np.maximum(limiter.limits_along(path.positions[1:], velocities)[:, :n], STANDING)
    fast = np.abs(speed) / limits
    sharp = np.sqrt(np.abs(rate) / limiter.max_acceleration[:n])
    need = np.maximum(fast, sharp)
    i, joint = (int(at) for at in np.unravel_index(int(np.argmax(need)), need.shape))
    if need[i, joint] <= 1.0:
        return Rates(1.0)
    name = limiter.joints[joint]
    if fast[i, joint] >= sharp[i, joint]:
        value, limit, unit = speed[i, joint], limits[i, joint], 'rad/s'
    else:
        value, limit, unit = rate[i, joint], limiter.max_acceleration[joint], 'rad/s2'
    reason = f'{name} would do {value:.2f} {unit}, limit {limit:.2f} {unit}'
    slow = need.max(axis=1) > 1.0 / enough
    first = int(path.begins[int(np.argmax(slow))]) if slow.any() else -1
    return Rates(1.0 / float(need[i, joint]), first, int(path.row[i]), reason)
