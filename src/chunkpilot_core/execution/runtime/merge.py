"""
How an absolute plan takes over from what ran before it, without a step.

``offset`` begins the new plan where the old one is and lets the difference fade: it needs no rows
of the old plan, so it also starts a motion from rest. ``linear`` and ``exponential`` are weighted
means of what both plans say; the latter has the weights of real-time chunking (arXiv 2506.07339).
"""

from chunkpilot_core import rotations, spaces
from chunkpilot_core.execution.runtime.columns import Columns
from chunkpilot_core.execution.runtime.plan import Plan
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.types import ActionSpace, F64, NS_PER_S
import numpy as np


class Merge:
    """Changes the targets of the first rows of a plan; grippers and discrete columns never."""

    def __init__(self, space: ActionSpace, columns: Columns, config: ExecutionConfig) -> None:
        self._space, self._columns = space, columns
        self._shape, self._rows = config.merge, config.blend_rows
        self._speed = config.blend_speed * columns.limits['fade']
        self._possible = bool(config.blend_rows and columns.fades.any())
        self._old: Plan | None = None
        self._offset = np.zeros(space.target_size)
        self._turns: list[F64] = []
        self._since_ns = self._duration_ns = 0

    @property
    def active(self) -> bool:
        """Whether rows are still changed."""
        return self._duration_ns > 0

    def begin(self, plan_ns: int, position: F64, old: Plan | None, new: Plan) -> None:
        """
        Fade into a plan that takes over.

        :param position: shape (T,), commanded at ``plan_ns``
        :param old: what ran until then, None from rest
        """
        self._duration_ns = 0
        if not self._possible:
            return
        self._since_ns, rows_ns = plan_ns, (self._rows + 1) * new.dt_ns
        if self._shape == 'offset':
            begins = value(self._space, new, plan_ns)
            if old is None:  # a velocity that fades in from rest would cost distance
                begins = np.where(self._columns.rates, position, begins)
            self._shift(position, begins, rows_ns)
        elif old is not None:  # only as long as the old plan says something
            left = (old.row_ns(old.known) - plan_ns) // new.dt_ns
            self._duration_ns = min(rows_ns, (left + 1) * new.dt_ns) if left > 0 else 0
            self._old = old

    def _shift(self, position: F64, begins: F64, rows_ns: int) -> None:
        """Keep how far the old plan is from where the new one begins, both (T,)."""
        columns = self._columns
        self._offset = np.where(columns.fades, position - begins, 0.0)
        self._turns = []
        for part in columns.quaternions:
            self._offset[part] = 0.0
            turn = np.zeros(3)
            if columns.fades[part].all():
                between = rotations.multiply(position[part], rotations.conjugate(begins[part]))
                turn = rotations.to_vector(between)
            self._turns.append(turn)
        slowest_s = float(np.max(np.abs(self._offset) / self._speed))
        for part, turn in zip(columns.quaternions, self._turns, strict=True):
            slowest_s = max(slowest_s, float(np.linalg.norm(turn) / self._speed[part.start]))
        if slowest_s > 0.0:
            self._duration_ns = max(rows_ns, round(slowest_s * NS_PER_S))

    def apply(self, target: F64, at_ns: int) -> None:
        """Change a target (T,) of the plan in force for a plan time, in place."""
        if self._duration_ns == 0:
            return
        weight = (at_ns - self._since_ns) / self._duration_ns  # of the new plan
        if weight >= 1.0:
            return
        if self._shape == 'offset':
            left = 1.0 - max(weight, 0.0)
            target += left * self._offset
            for part, turn in zip(self._columns.quaternions, self._turns, strict=True):
                target[part] = rotations.multiply(rotations.from_vector(left * turn), target[part])
            return
        assert self._old is not None
        if self._shape == 'exponential':
            weight = 1.0 - (1.0 - weight) * np.expm1(1.0 - weight) / np.expm1(1.0)
        old = value(self._space, self._old, at_ns)
        mixed = spaces.interpolate(self._space, old, target, weight)
        target[self._columns.fades] = mixed[self._columns.fades]

    def passed(self, plan_ns: int) -> None:
        """End where the fade is over, which saves the next rows the work."""
        if self._duration_ns and plan_ns - self._since_ns >= self._duration_ns:
            self._duration_ns = 0
            self._old = None


def value(space: ActionSpace, plan: Plan, plan_ns: int) -> F64:
    """
    Return what the absolute groups of a plan say for a plan time, shape (T,).

    Rows beyond the horizon count: they are discarded for running, not for merging. Before the
    first row's end the path is extended backwards; past the last one it stays there.
    """
    place = (plan_ns - plan.start_ns) / plan.dt_ns - 1.0
    last = len(plan.actions) - 1
    row = min(max(int(np.floor(place + 1e-6)), 0), max(last - 1, 0))
    nothing = np.zeros(space.target_size)
    before = spaces.resolve_row(space, plan.actions[row], nothing)
    share = min(max(place, -1.0), last) - row
    if last == 0 or abs(share) < 1e-6:
        return before
    after = spaces.resolve_row(space, plan.actions[row + 1], nothing)
    return spaces.interpolate(space, before, after, share)
