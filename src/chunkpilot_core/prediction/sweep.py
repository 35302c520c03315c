"""
Distances along a path, and the risk that they mean.

Each row's end is looked at. Between two of them the bodies of a pair move past each other by no
more than a bound m, so that a pair which is d and e apart at the ends is at least (d + e - m) / 2
apart in between; only where that is not enough the way is divided further.
"""

from dataclasses import dataclass

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.prediction.flaws import CLEARANCE, Flaw
from chunkpilot_core.types import F64
import numpy as np
from numpy.typing import NDArray

GROWTH_M = 0.002  # by which a row further on has to stay farther away: the model is never exact
LEAVING_M = 5e-4  # less nearer than before is not nearer
CARRIED_M = 0.006  # what is carried stays clear of obstacles, however near it may come in the end
BESIDE_M = 0.025  # fingers pass an obstacle on a detour: what they may carry reaches beyond them
ASIDE_M = 0.015  # what is carried does: where it is in the hand is an estimate
PRESSED_M = 0.03  # what is put down on something fixed may be sent so deep into it
WORKING_M = 0.01  # pairs that may come nearer are there to work near: only contact counts


@dataclass(frozen=True, slots=True)
class Swept:
    """
    ``flaw`` is the first row that comes too near to something; ``risks`` (M,) 0 to 1 of the points
    given; the smallest clearance [m] above what stops the arm, with its pair.
    """

    flaw: Flaw | None
    risks: F64
    min_clearance: float
    pair: str


class Sweeper:
    """Sweeps one robot's paths."""

    def __init__(self, clearance: Clearance, spacing_m: float, max_samples: int) -> None:
        """
        Use distances.

        :param spacing_m: no point of the arm moves farther between two samples, where it matters
        :param max_samples: looked at between the rows' ends, the most critical ways first
        """
        self._clearance, self._spacing, self._max = clearance, spacing_m, max_samples
        self.surroundings_changed()

    def surroundings_changed(self) -> None:
        """Follow :meth:`Clearance.set_obstacles`."""
        clearance = self._clearance
        self._working = clearance.stop < WORKING_M
        held = {thing.name for thing in clearance.surroundings if thing.held}
        fixed = {box.name for box in clearance.collision.environment}
        loose = {thing.name for thing in clearance.surroundings} - held - fixed
        self._carried = np.array([a in held and b in loose for a, b in clearance.pairs], bool)
        self._put = np.array([a in held and b in fixed for a, b in clearance.pairs], bool)
        sliding = {slide.joint for slide in clearance.collision.slides}
        fingers = {body.name for body in clearance.collision.bodies if body.frame in sliding}
        self._reaching = np.array([a in fingers and b in loose for a, b in clearance.pairs], bool)

    def sweep(
        self, positions: F64, rows: NDArray[np.intp], checked: int, detour: bool = False
    ) -> Swept:
        """
        Look at a path.

        :param positions: shape (M + 1, J), the present one first
        :param rows: numbers of the M others, for the reason and for how much the margin has grown
        :param checked: of the M points so many may be flaws; those after them have a risk only
        :param detour: whether nobody but us has thought of the path: it keeps a wider berth
        """
        clearance = self._clearance
        distances = clearance.sweep(positions)
        limits = self._limits(len(rows))
        if detour:
            checked = len(rows)  # what comes next is judged only when it has come
            limits[:, self._reaching] = BESIDE_M
            limits[:, self._carried] = ASIDE_M
        nearer = distances[1:] < distances[0] - LEAVING_M
        slack = np.where(nearer & ~self._put, distances[1:] - clearance.stop, np.inf)
        room = np.maximum(clearance.slow - clearance.stop, 1e-6)
        shares = np.where(self._working & (slack > 0.0), 0.0, 1.0 - slack / room)
        risks = np.clip(shares, 0.0, 1.0).max(axis=1, initial=0.0)
        bad = nearer & (distances[1:] < limits)
        found = self._between(positions, distances, limits, checked)
        bad[:checked] |= found < limits[:checked]
        closest = np.minimum(distances[1 : checked + 1], np.where(np.isinf(found), 9.0, found))
        flat = int(np.argmin(closest - clearance.stop))
        _, pair = np.unravel_index(flat, closest.shape)
        flaw = None
        if bad[:checked].any():
            i = int(np.argmax(bad[:checked].any(axis=1)))
            depth = np.where(bad[i], closest[i] - limits[i], np.inf)
            p = int(np.argmin(depth))
            flaw = Flaw(
                int(rows[i]),
                CLEARANCE,
                f'{clearance.names[p]} would be {closest[i, p]:.4f} m apart, '
                f'needed {limits[i, p]:.4f} m',
            )
        return Swept(flaw, risks, float(closest.reshape(-1)[flat]), clearance.names[int(pair)])

    def _limits(self, count: int) -> F64:
        """
        Return what is needed at each point, shape (M, P): at most halfway to being slowed.

        Fingers work a few millimetres above a table, nearer than rows far ahead are exact: there
        it is the guard's business, tick by tick, to keep the distance.
        """
        stop, slow = self._clearance.stop, self._clearance.slow
        most = np.where(self._working, 0.0, np.maximum(slow - stop, 0.0) / 2.0)
        least = np.where(self._working, np.minimum(stop, 0.0), stop)
        least[self._carried] = CARRIED_M
        least[self._put] = -PRESSED_M
        limits: F64 = least + np.minimum(GROWTH_M * np.arange(count)[:, None], most)
        return limits

    def _between(self, positions: F64, distances: F64, limits: F64, checked: int) -> F64:
        """Return the smallest distances on the way to each point, (M, P); inf = far enough."""
        found = np.full((checked, distances.shape[1]), np.inf)
        moved = np.abs(np.diff(positions[: checked + 1], axis=0)) @ self._clearance.levers
        ends = distances[:checked], distances[1 : checked + 1]
        low = (ends[0] + ends[1] - moved) / 2.0
        needed = np.minimum(limits[:checked], distances[0] - LEAVING_M)
        unsure = (low < needed) & (np.minimum(*ends) >= needed) & (moved > self._spacing)
        ways = np.flatnonzero(unsure.any(axis=1))
        if not (len(ways) and self._max):
            return found
        urgency = np.where(unsure, low - needed, np.inf).min(axis=1)
        longest = np.where(unsure, moved, 0.0).max(axis=1)
        points, owners = [], []
        left = self._max
        for way in ways[np.argsort(urgency[ways])]:
            count = min(int(np.ceil(longest[way] / self._spacing)) - 1, left)
            share = np.arange(1, count + 1)[:, None] / (count + 1)
            points.append(positions[way] + share * (positions[way + 1] - positions[way]))
            owners += [way] * count
            left -= count
            if left <= 0:
                break
        seen = self._clearance.sweep(np.concatenate(points), reach=self._reach(ends[1], limits))
        seen = np.where(seen < distances[0] - LEAVING_M, seen, np.inf)
        np.minimum.at(found, np.array(owners), seen)
        return found

    def _reach(self, distances: F64, limits: F64) -> F64:
        """Return up to where distances between rows matter, (P,): by a flaw or as the smallest."""
        stop = self._clearance.stop
        smallest = stop + (distances - stop).min() + 1e-9
        reach: F64 = np.maximum(smallest, limits.max(axis=0))
        return reach


def worse(one: Swept, other: Swept) -> Swept:
    """Return the earlier flaw, the higher risks and the smaller clearance of two sweeps."""
    flaws = [swept.flaw for swept in (one, other) if swept.flaw is not None]
    nearest = one if one.min_clearance <= other.min_clearance else other
    return Swept(
        min(flaws, key=lambda flaw: flaw.row, default=None),
        np.maximum(one.risks, other.risks),
        nearest.min_clearance,
        nearest.pair,
    )
