"""
The rows of a chunk that are not over yet, as absolute targets from where the arm is.

As execution makes them: the row that is due now starts where the arm is commanded, each other one
where the row before it ends.
"""

from chunkpilot_core import spaces
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.types import ActionChunk, ActionSpace, F32, F64, JointState, nanoseconds
import numpy as np


def due_row(chunk: ActionChunk, now_ns: int, known: int | None = None) -> float:
    """
    Return the row that is due now, with how much of it is over; the last one never is.

    :param known: rows that there are by now; None = all
    """
    late = (now_ns - chunk.start_ns) / nanoseconds(chunk.dt_s)
    return min(max(late, 0.0), (known or chunk.horizon) - 1.0)


def due_targets(
    space: ActionSpace, kinematics: Kinematics, rows: F32, due: float, commanded: F64
) -> F64:
    """
    Return the targets (H - first, T) of the rows that are not over.

    :param rows: shape (H, A), policy units
    :param due: from :func:`due_row`; its whole part is the first row
    :param commanded: joints sent last, shape (J,)
    """
    state = JointState(0, kinematics.robot.joints, commanded, np.zeros(len(commanded)))
    here = spaces.from_joints(space, kinematics, state)
    first = int(due)
    start = spaces.resolve_row(space, rows[first], here)
    left = spaces.interpolate(space, here, start, 1.0 - (due - first))
    for group, columns in spaces.target_slices(space):
        if group.kind.relative:  # of a displacement only the rest is left
            start[columns] = left[columns]
    return np.vstack((start, spaces.resolve(space, rows[first + 1 :], start)))
