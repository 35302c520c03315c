"""Distances by a library that is asked for pair after pair: for those that may be near."""

from abc import abstractmethod

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.balls import Balls
from chunkpilot_core.clearance.runtime.bodies import Frames
from chunkpilot_core.clearance.runtime.bounds import Bounds, LOOK_M
from chunkpilot_core.types import F64
import numpy as np
from numpy.typing import NDArray

FEW = 3  # poses, as of a tick: along a path bounds do not last


class Pairwise(Clearance):
    """
    Asks at few poses for what bounds do not rule out, and along a path for what balls do not.

    So a pose costs about as much as there is near it.
    """

    _frames: Frames
    _balls: Balls
    _bounds: Bounds

    @abstractmethod
    def _place(self, joints: F64, poses: F64 | None, pairs: list[int]) -> None:
        """
        Put everything where it is at ``joints`` (J,), at least what belongs to ``pairs``.

        :param poses: a row of :meth:`_poses`; may be None where nobody :meth:`_follows`
        """

    @abstractmethod
    def _apart(self, pairs: list[int], reach: list[float]) -> list[float]:
        """Return the distances of pairs [m]; from ``reach`` on any number from there will do."""

    def _follows(self) -> bool:
        """Return whether :meth:`_place` needs frames."""
        return True

    def _poses(self, frames: F64) -> F64:
        """Return what :meth:`_place` needs of frames (N, F, 4, 4), with a row for each pose."""
        return frames

    def _watch(self) -> None:
        """Follow surroundings that are elsewhere."""
        self._balls = Balls(self._frames, self.collision, self.surroundings, self.pairs)
        self._bounds = Bounds(self.levers)

    def measure(self, joints: F64, arm: F64, reach: F64) -> F64:
        """Return the distances of all pairs, shape (N, P) [m]."""
        bounds, few = self._bounds, len(joints) <= FEW
        out = np.empty((len(joints), len(self.pairs)))
        out[:] = reach
        frames = None
        if bounds.blank or self._follows() or not few:
            frames = self._frames.at(joints, arm)
        if frames is not None and (bounds.blank or not few):
            maybe = self._near_by_balls(joints, frames, out)
        else:
            maybe = bounds.near(joints, out)
        look, poses = LOOK_M if few else 0.0, None if frames is None else self._poses(frames)
        for row in np.flatnonzero(maybe.any(axis=1)).tolist():
            pairs = np.flatnonzero(maybe[row]).tolist()
            self._place(joints[row], None if poses is None else poses[row], pairs)
            found = self._apart(pairs, (out[row, pairs] + look).tolist())
            out[row, pairs] = found
            if few:
                bounds.learn(pairs, joints[row], found)
        return out

    def _near_by_balls(self, joints: F64, frames: F64, reach: F64) -> NDArray[np.bool_]:
        least = self._balls.at_least(frames)
        if self._bounds.blank and len(joints):
            self._bounds.learn(slice(None), joints[0], least[0])
        return least < reach
