"""
Averages of rows that several chunks predict for the same time.

Displacements for the same time may be averaged like velocities: the mean goes where the chunks go
on average, and no chunk's position drifts away from what was commanded. Rows that count from the
start of their own chunk may not: they start at different places.
"""

from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import ActionSpace, F32, F64, Reference, Rotation
import numpy as np


class Blender:
    """What may be averaged in the rows of one space: motion, not grippers, and q as well as -q."""

    def __init__(self, space: ActionSpace) -> None:
        """
        Prepare for a space.

        :raises ConfigError: rows of different chunks can't be compared in it
        """
        for group in space.groups:
            if group.reference is Reference.CHUNK_START:
                raise ConfigError(
                    f'action group {group.name!r}: rows count from the start of their chunk, so '
                    'those of different chunks can not be compared; a reference that is allowed: '
                    'commanded, measured, or absolute rows'
                )
        self.grippers = np.flatnonzero(~spaces.motion_columns(space))
        self._quaternions = [
            slice(group.start + 3, group.stop)
            for group in space.groups
            if group.rotation is Rotation.QUATERNION
        ]

    def aligned(self, predictions: F32) -> F64:
        """Return predictions (L, A) with quaternions in the hemisphere of the newest one's."""
        rows: F64 = predictions.astype(np.float64)
        for part in self._quaternions:
            rows[rows[:, part] @ rows[-1, part] < 0.0, part] *= -1.0
        return rows

    def finished(self, row: F64, gripper: F32) -> F32:
        """
        Return an averaged row (A,) as one that can run.

        :param gripper: shape (A,); its gripper columns are taken: half open is none of the answers
        """
        row = row.copy()
        row[self.grippers] = gripper[self.grippers]
        for part in self._quaternions:
            row[part] /= max(float(np.linalg.norm(row[part])), 1e-9)
        return row.astype(np.float32)
