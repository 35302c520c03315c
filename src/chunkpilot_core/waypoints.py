"""
Way points (HYDRA, arXiv 2306.17237): rows that are reached in a straight line.

A policy that tells way points from dense actions only has to place the former well; what lies
between is interpolated. Demonstrations must be relabelled in the same way, or the policy learns
the wiggles of the demonstrator on the way: :func:`straightened` does both.
"""

from chunkpilot_core import spaces
from chunkpilot_core.smoothness import VELOCITY_KINDS
from chunkpilot_core.types import ActionSpace, F32, F64, Kind, Reference, Rotation
import numpy as np
from numpy.typing import NDArray


def straightened(space: ActionSpace, rows: F32, waypoint: NDArray[np.bool_], last_row: F32) -> F32:
    """
    Return rows (N, A) whose poses move evenly from way point to way point.

    A row that is a way point keeps its target; so does every row after the last one, and a run of
    way points is left as it is: dense actions. Grippers and velocities are never interpolated.

    :param rows: of a chunk or a whole demonstration, shape (N, A), policy units
    :param waypoint: shape (N,)
    :param last_row: shape (A,), the command before row 0 in policy units, 0 in relative columns
    """
    start = spaces.resolve_row(space, last_row, _nowhere(space))
    targets = spaces.resolve(space, rows, start)
    from_start = any(group.reference is Reference.CHUNK_START for group in space.groups)
    kept = _kept(space)
    result: F32 = rows.copy()
    before, first = start, 0
    for row in np.flatnonzero(waypoint):
        straight = targets[first : row + 1].copy()
        for i in range(row - first):
            straight[i] = spaces.interpolate(space, before, targets[row], (i + 1) / len(straight))
        straight[:, kept] = targets[first : row + 1, kept]
        if row > first:
            base = start if from_start else before
            result[first : row + 1] = spaces.to_rows(space, straight, base)
        before, first = targets[row], row + 1
    return result


def _nowhere(space: ActionSpace) -> F64:
    """Return a reference (T,) for relative rows: the origin, not turned."""
    reference = np.zeros(space.target_size)
    for group, columns in spaces.target_slices(space):
        if group.rotation is not Rotation.NONE:
            reference[columns.stop - 1] = 1.0
    return reference


def _kept(space: ActionSpace) -> NDArray[np.bool_]:
    """Return which columns of a target (T,) are never interpolated."""
    mask = np.zeros(space.target_size, bool)
    for group, columns in spaces.target_slices(space):
        mask[columns] = group.kind in (Kind.GRIPPER, *VELOCITY_KINDS)
    return mask
