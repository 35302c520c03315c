"""
Voting (VOTE, arXiv 2507.05116): the larger of two camps of predictions decides.

What the last chunks say for a row is split by whether its direction agrees with the newest one
(cosine above 0.5), and the mean of the larger set runs; a tie goes to the newest. Differs from
VOTE: directions are those of velocities in units of the limits, so that absolute rows work as
well; two predictions that do not move agree; the gripper is that of the newest of the set.
"""

from dataclasses import dataclass

from chunkpilot_core import smoothness
from chunkpilot_core.config import option
from chunkpilot_core.execution.runtime.overlap import OverlapConfig, Overlapping
from chunkpilot_core.types import F32, F64, PolicySpec
import numpy as np
from numpy.typing import NDArray

STILL = 1e-3  # of the velocity limits; slower has no direction


class Vote(Overlapping):
    """Runs the mean of the predictions that agree with the newest, or of those that do not."""

    @dataclass(frozen=True)
    class Config(OverlapConfig):
        """What counts as agreement."""

        similarity: float = option(
            0.5, 'cosine from which on two predictions agree', min=-1.0, max=1.0
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()
        super().__init__('vote', self.config)
        self._last: F32 | None = None

    def configure(self, spec: PolicySpec) -> None:
        """Get ready for a policy; see :meth:`Overlapping.configure`."""
        super().configure(spec)
        self._scale = smoothness.motion_scale(spec.space, spec.dt_s)
        self._last = None

    def blend(self, predictions: F32) -> F32:
        """Return the mean of the larger set of predictions (L, A)."""
        rows = self.newest(predictions)
        if len(rows) == 1 or self._last is None:  # a single one says nothing; none came before
            newest: F32 = rows[-1]
            self._last = newest
            return newest
        agree = self._agree(self._velocities(rows, self._last))
        winners = rows[agree] if 2 * agree.sum() >= len(rows) else rows[~agree]
        mean = self.blender.aligned(winners).mean(axis=0)
        self._last = self.blender.finished(mean, winners[-1])
        return self._last

    def _velocities(self, rows: F32, last: F32) -> F64:
        """Return how each prediction would move on from the row that ran last, shape (L, M)."""
        moved = [smoothness.velocities(self._scale, row[None], last)[0] for row in rows]
        return np.array(moved)

    def _agree(self, velocity: F64) -> NDArray[np.bool_]:
        speed = np.linalg.norm(velocity, axis=1)
        moving = speed > STILL
        directions = velocity / np.maximum(speed, STILL)[:, None]
        same: NDArray[np.bool_] = directions @ directions[-1] >= self.config.similarity
        return same if moving[-1] else ~moving
