"""
What pairs are apart at least, from what they were where the joints have been.

A distance changes by no more than the levers of its pair times the motion of the joints, so that
from tick to tick most pairs need not be measured.
"""

from chunkpilot_core.types import F64
import numpy as np
from numpy.typing import NDArray

LOOK_M = 0.25  # [m] farther than asked for is measured, which makes a bound last


class Bounds:
    """Remembers of each of P pairs one distance and where the joints were."""

    def __init__(self, levers: F64) -> None:
        """
        Know nothing.

        :param levers: as of :func:`levers`, shape (J, P) [m] per unit of the joint
        """
        self._levers = np.ascontiguousarray(levers.T)
        self._at = np.zeros_like(self._levers)
        self._known = np.full(len(self._levers), -np.inf)
        self.blank = True

    def near(self, joints: F64, reach: F64) -> NDArray[np.bool_]:
        """Return which pairs may be nearer than ``reach`` (N, P) [m] at ``joints`` (N, J)."""
        moved = np.abs(self._at - joints[:, None])
        lost = np.einsum('npj,pj->np', moved, self._levers)
        near: NDArray[np.bool_] = ~(self._known - lost >= reach)  # what is not a number is near
        return near

    def learn(self, pairs: list[int] | slice, joints: F64, distances: F64 | list[float]) -> None:
        """Take what pairs are apart at least at ``joints`` (J,)."""
        self._known[pairs] = distances
        self._at[pairs] = joints
        self.blank = False
