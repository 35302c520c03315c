"""
The path of sent targets over time: straight lines between the borders of executed rows.

Rows of successive chunks lie on grids of different phase, and a replaced chunk ends inside a row.
Whoever learns from rows samples this path anew on a grid of his own.
"""

from chunkpilot_core import spaces
from chunkpilot_core.types import ActionSpace, F64, Rotation
import numpy as np
from numpy.typing import NDArray

SLACK_NS = 2_000_000  # [ns] rows whose borders lie this close belong together


class SentPath:
    """Targets at K knots in order of time, K >= 1."""

    def __init__(
        self,
        space: ActionSpace,
        knots_ns: NDArray[np.int64],
        targets: F64,
        good: NDArray[np.bool_],
    ) -> None:
        """
        Keep the knots.

        :param knots_ns: shape (K,), strictly ascending
        :param targets: shape (K, T), what was reached at each
        :param good: shape (K,), whether the stretch that ends at each knot is one that was sent
            and is wanted; of the first knot it means nothing
        """
        self._space, self._knots, self._targets = space, knots_ns, targets
        self._good = good.copy()
        self._good[:1] = False

    def covers(self, stamp_ns: int) -> bool:
        """Whether targets before and after ``stamp_ns`` are known."""
        knots = self._knots
        return bool(len(knots) > 1 and knots[0] <= stamp_ns < knots[-1])

    def allowed(self, grid: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each of the H stretches of a grid (H + 1,), whether all of it is good."""
        first = np.searchsorted(self._knots, grid[:-1], side='right')
        last = np.searchsorted(self._knots, grid[1:], side='left')
        inside = last < len(self._knots)
        bad = np.concatenate(([0], np.cumsum(~self._good)))
        last = np.minimum(last, len(self._knots) - 1)
        clean: NDArray[np.bool_] = inside & (bad[last + 1] - bad[first] == 0)
        return clean

    def at(self, grid: NDArray[np.int64]) -> F64:
        """Return the targets (H + 1, T) at the grid's times; first and last ones are held."""
        knots, targets = self._knots, self._targets
        if len(knots) == 1:
            return np.repeat(targets, len(grid), axis=0)
        after = np.clip(np.searchsorted(knots, grid, side='left'), 1, len(knots) - 1)
        span = knots[after] - knots[after - 1]
        fraction = np.clip((grid - knots[after - 1]) / span, 0.0, 1.0)
        before, reached = targets[after - 1], targets[after]
        if all(group.rotation is Rotation.NONE for group in self._space.groups):
            out: F64 = before + fraction[:, None] * (reached - before)
            return out
        return np.array(
            [
                spaces.interpolate(self._space, one, other, float(share))
                for one, other, share in zip(before, reached, fraction, strict=True)
            ]
        ).reshape(len(grid), self._space.target_size)
