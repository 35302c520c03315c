"""
Inverse kinematics of a whole path at once: every point is iterated on from the same start.

The same damped least squares as :meth:`Kinematics.inverse`, for all points together: an iteration
costs little more than that of a single point. The pull towards home grows along the path, as the
guard applies it tick by tick. Far points that this does not reach, where the arm is stretched, are
solved one after the other.
"""

from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.types import F64
import numpy as np

ITERATIONS = 10
PULLED = 4  # iterations with a pull towards home; those after them only converge
PULL_RATE = 0.4  # [1/s] share of the way home that the guard's inverse kinematics closes
SINGULAR, DAMPING = 0.02, 0.05
LONGEST = 0.3  # [rad] step of a joint
UNSOLVED, GIVEN_UP = 1e-4, 0.01  # [m], [rad]
JUMP = 0.2  # [rad] from point to point: a stretched arm's iteration may have gone astray


def inverse_along(
    kinematics: Kinematics,
    positions: F64,
    rotation: F64,
    start: F64,
    ahead_s: F64,
    tolerance: float = 1e-5,
) -> tuple[F64, F64]:
    """
    Find joints that bring the tool to each point of a path.

    :param positions: shape (N, 3) [m], world
    :param rotation: shape (N, 3, 3) or (3, 3), world
    :param start: joints (n,) [rad], near the whole path
    :param ahead_s: when each point is reached, shape (N,) [s] from now
    :param tolerance: on both errors [m], [rad]
    :returns: joints (N, n) inside the position limits, and what is left of the errors of place and
        orientation, shape (N, 2) [m], [rad]
    """
    robot = kinematics.robot
    lower = np.array([limit.min_position for limit in robot.limits])
    upper = np.array([limit.max_position for limit in robot.limits])
    home = np.array(robot.home)
    share = 1.0 - np.exp(-PULL_RATE * ahead_s / PULLED)
    joints = np.repeat(start[None], len(positions), axis=0)
    for i in range(ITERATIONS + 1):
        frames = kinematics.frames_along(joints)
        error = _errors(frames[:, -1], positions, rotation)
        left: F64 = np.sqrt(
            np.stack(((error[:, :3] ** 2).sum(axis=1), (error[:, 3:] ** 2).sum(axis=1)), axis=1)
        )
        if i == ITERATIONS or (i >= PULLED and left.max() < tolerance):
            break
        posture = share[:, None] * (home - joints) if i < PULLED else np.zeros_like(joints)
        joints = np.clip(joints + _changes(frames, error, posture), lower, upper)
    _go_on(kinematics, positions, rotation, start, joints, left)
    return joints, left


def _go_on(
    kinematics: Kinematics, positions: F64, rotation: F64, start: F64, joints: F64, left: F64
) -> None:
    """Solve what is not solved, or jumps, point by point from the one before, up to a failure."""
    turns = np.broadcast_to(rotation, (len(joints), 3, 3))
    jumps = np.abs(np.diff(joints, axis=0, prepend=start[None])).max(axis=1) > JUMP
    bad = np.flatnonzero(jumps | (left.max(axis=1) > UNSOLVED))
    for i in range(int(bad[0]), len(joints)) if len(bad) else ():
        before = joints[i - 1] if i else start
        found = kinematics.inverse(positions[i], turns[i], before)
        joints[i], left[i] = found.joints, (found.position_error, found.rotation_error)
        if left[i].max() > GIVEN_UP:
            return


def _errors(tool: F64, positions: F64, rotation: F64) -> F64:
    """Return place and rotation vector that are missing, shape (N, 6)."""
    turn = np.matmul(rotation, tool[:, :3, :3].swapaxes(-1, -2))
    axis = 0.5 * np.stack(
        (
            turn[:, 2, 1] - turn[:, 1, 2],
            turn[:, 0, 2] - turn[:, 2, 0],
            turn[:, 1, 0] - turn[:, 0, 1],
        ),
        axis=1,
    )
    sine = np.sqrt((axis * axis).sum(axis=1))
    cosine = 0.5 * (np.trace(turn, axis1=1, axis2=2) - 1.0)
    angle = np.arctan2(sine, cosine)
    known = sine > 1e-9
    axis *= np.where(known, angle / np.where(known, sine, 1.0), 1.0)[:, None]
    axis[:, 0] += np.where(known, 0.0, angle)  # half a turn has no axis here: any will do
    return np.concatenate((positions - tool[:, :3, 3], axis), axis=1)


def _changes(frames: F64, error: F64, posture: F64) -> F64:
    """Return the steps of the joints, shape (N, n)."""
    axes, origins = frames[:, :-1, :3, 2], frames[:, :-1, :3, 3]
    moved = np.cross(axes, frames[:, -1:, :3, 3] - origins)
    jacobian = np.concatenate((moved, axes), axis=-1)  # transposed: (N, n, 6)
    gram = np.matmul(jacobian.swapaxes(-1, -2), jacobian)
    manipulability = np.sqrt(np.maximum(np.linalg.det(gram), 0.0))
    damping = DAMPING**2 * np.maximum(1.0 - manipulability / SINGULAR, 0.0) ** 2
    gram += (damping + 1e-12)[:, None, None] * np.eye(6)
    rest = error - np.einsum('nji,nj->ni', jacobian, posture)
    inner = np.linalg.solve(gram, rest[..., None])[..., 0]
    change = posture + np.einsum('nji,ni->nj', jacobian, inner)
    largest = np.abs(change).max(axis=1)
    shorter: F64 = change * np.minimum(1.0, LONGEST / np.maximum(largest, 1e-12))[:, None]
    return shorter
