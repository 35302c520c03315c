"""
What of a path breaks a limit: joints, reach, workspace, and room to stop at its end.

Each function returns the first flaw, or None. What is there already at the start and does not grow
is no flaw of the chunk: leaving is always allowed.
"""

from dataclasses import dataclass

from chunkpilot_core.prediction.path import Path
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import F64
import numpy as np

CLEARANCE = 'clearance'  # the check that knows what is in the way

SLACK_RAD, SLACK_M = 1e-3, 1e-3


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first bad ``row`` of a chunk, which check says so, and why."""

    row: int
    check: str
    reason: str


def not_finite(path: Path) -> Flaw | None:
    """Return the first row that leads nowhere, such as one with a quaternion of length 0."""
    good = np.isfinite(path.positions[1:]).all(axis=1) & np.isfinite(path.left).all(axis=1)
    if good.all():
        return None
    return Flaw(int(path.row[int(np.argmin(good))]), 'kinematics', 'its joints are not finite')


def out_of_reach(path: Path, tolerance_m: float, tolerance_rad: float) -> Flaw | None:
    """Return the first row to which no joint angles were found."""
    bad = (path.left[:, 0] > tolerance_m) | (path.left[:, 1] > tolerance_rad)
    if not bad.any():
        return None
    i = int(np.argmax(bad))
    place, turn = path.left[i]
    return Flaw(
        int(path.row[i]),
        'kinematics',
        f'no joint angles found: {place:.4f} m and {turn:.4f} rad are left',
    )


def beyond_joints(path: Path, limiter: Limiter) -> Flaw | None:
    """Return the first row that leads a joint of the arm beyond its soft limits."""
    n = limiter.n_arm
    beyond = np.maximum(limiter.lower - path.positions, path.positions - limiter.upper)[:, :n]
    bad = beyond[1:] > np.maximum(beyond[0], 0.0) + SLACK_RAD
    if not bad.any():
        return None
    i = int(np.argmax(bad.any(axis=1)))
    joint = int(np.argmax(np.where(bad[i], beyond[i + 1], -np.inf)))
    value = path.positions[i + 1, joint]
    limit = limiter.upper[joint] if value > limiter.upper[joint] else limiter.lower[joint]
    return Flaw(
        int(path.row[i]),
        'position_limits',
        f'{limiter.joints[joint]} would be at {value:.4f} rad, soft limit {limit:.4f} rad',
    )


def beyond_workspace(path: Path, robot: Robot, tolerance_m: float) -> Flaw | None:
    """
    Return the first row that wants the tool out of its box, or brings it there.

    A little is allowed: the guard moves targets onto the wall, and the tool slides along it.
    """
    lower, upper = np.array(robot.workspace_lower), np.array(robot.workspace_upper)
    places: F64 = np.where(np.isfinite(path.asked), path.asked, path.tool[1:])
    start = np.maximum(np.maximum(lower - path.tool[0], path.tool[0] - upper), 0.0)
    beyond: F64 = np.maximum(lower - places, places - upper)
    bad = beyond > start + tolerance_m
    if not bad.any():
        return None
    i = int(np.argmax(bad.max(axis=1)))
    axis = int(np.argmax(np.where(bad[i], beyond[i], -np.inf)))
    value = places[i, axis]
    limit = upper[axis] if value > upper[axis] else lower[axis]
    return Flaw(
        int(path.row[i]),
        'workspace',
        f'{"xyz"[axis]} would be {value:.4f} m, the workspace ends at {limit:.4f} m',
    )


def stop_after(path: Path, limiter: Limiter, row: int = -1) -> F64:
    """Return where braking after a row of the path would end, shape (J,)."""
    velocity = path.velocities[row]
    n = limiter.n_arm
    rest: F64 = path.positions[1:][row].copy()
    rest[:n] += 0.5 * velocity[:n] * brake_s(velocity, limiter)
    return rest


def brake_s(velocity: F64, limiter: Limiter) -> float:
    """Return how long braking takes, all joints of the arm to rest together [s]."""
    n = limiter.n_arm
    return float((np.abs(velocity[:n]) / limiter.max_acceleration[:n]).max())


def no_room_to_stop(path: Path, limiter: Limiter) -> Flaw | None:
    """Return the last row if braking after it would end beyond a joint's hard limits."""
    n, rest = limiter.n_arm, stop_after(path, limiter)
    beyond = np.maximum(limiter.hard_lower - rest, rest - limiter.hard_upper)[:n]
    joint = int(np.argmax(beyond))
    if beyond[joint] <= SLACK_RAD:
        return None
    return Flaw(
        int(path.row[-1]),
        'stop_room',
        f'{limiter.joints[joint]} would come to rest at {rest[joint]:.4f} rad, beyond its limit',
    )
