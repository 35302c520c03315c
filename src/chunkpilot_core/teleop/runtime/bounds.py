"""No target of a teleoperator moves faster than its source may, from the first command on."""

from chunkpilot_core import rotations, spaces
from chunkpilot_core.teleop.base import Bounds
from chunkpilot_core.types import ActionSpace, F64, Kind
import numpy as np

JOINTS = (Kind.JOINT_POSITION, Kind.JOINT_DELTA)


def bounded_target(
    space: ActionSpace, before: F64, target: F64, passed_s: float, bounds: Bounds
) -> F64:
    """
    Return how far (T,) on the way from ``before`` to ``target`` one gets in ``passed_s``.

    A target that is near enough is returned bit for bit.
    """
    allowed: F64 = target.copy()
    for group, columns in spaces.target_slices(space):
        old, new = before[columns], target[columns]
        if group.kind is Kind.GRIPPER:
            allowed[columns] = _towards(old, new, bounds.gripper * passed_s)
        elif group.kind in JOINTS:
            allowed[columns] = _towards(old, new, bounds.joint * passed_s)
        elif group.kind.cartesian:
            allowed[columns] = _pose(old, new, passed_s, bounds)
        else:  # velocities
            allowed[columns] = np.clip(new, -bounds.joint, bounds.joint)
    return allowed


def bounded_velocity(space: ActionSpace, velocity: F64, bounds: Bounds) -> F64:
    """Return a velocity (T,) [per s] of the same direction, in each group as fast as allowed."""
    allowed: F64 = velocity.copy()
    for group, columns in spaces.target_slices(space):
        new = velocity[columns]
        if group.kind.cartesian:
            # A quaternion turns by half the angle.
            parts = (_shortened(new[:3], bounds.tool), _shortened(new[3:], 0.5 * bounds.turn))
            allowed[columns] = np.concatenate(parts)
        elif group.kind is Kind.GRIPPER:
            allowed[columns] = np.clip(new, -bounds.gripper, bounds.gripper)
        else:
            allowed[columns] = _towards(np.zeros_like(new), new, bounds.joint)
    return allowed


def _towards(old: F64, new: F64, most: float) -> F64:
    """Move all joints together, the fastest by ``most``."""
    longest = float(np.abs(new - old).max(initial=0.0))
    return new if longest <= most else old + (new - old) * (most / longest)


def _shortened(vector: F64, most: float) -> F64:
    length = float(np.linalg.norm(vector))
    return vector if length <= most else vector * (most / length)


def _pose(old: F64, new: F64, passed_s: float, bounds: Bounds) -> F64:
    moved: F64 = new.copy()
    way = new[:3] - old[:3]
    if np.linalg.norm(way) > bounds.tool * passed_s:
        moved[:3] = old[:3] + _shortened(way, bounds.tool * passed_s)
    if len(new) > 3:
        turn = rotations.to_vector(rotations.multiply(new[3:], rotations.conjugate(old[3:])))
        if np.linalg.norm(turn) > bounds.turn * passed_s:
            part = rotations.from_vector(_shortened(turn, bounds.turn * passed_s))
            moved[3:] = rotations.multiply(part, old[3:])
            moved[3:] /= np.linalg.norm(moved[3:])
    return moved
