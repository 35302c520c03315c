"""
From rows to absolute targets at the control rate: anchors, interpolation, merges, stopping.

Within a row the target follows a cubic that meets the row's target on time and whose velocity is
continuous from row to row and over merges. A straight line would kick the arm at each row border,
by more than its acceleration limit as soon as the policy changes speed by 5 cm/s.
"""

from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.execution.runtime import spline
from chunkpilot_core.execution.runtime.plan import Plan
from chunkpilot_core.smoothness import VELOCITY_KINDS
from chunkpilot_core.types import ActionSpace, F32, F64, Kind, Reference, Rotation, seconds
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


class Columns:
    """What is what in a target (T,) of a space, as masks and limits of that shape."""

    def __init__(self, space: ActionSpace, reanchor_m: float, reanchor_rad: float) -> None:
        size = space.target_size
        self.commanded, self.measured, self.chunk_start = (np.zeros(size, bool) for _ in range(3))
        self.fades, self.rates, self.motion = (np.zeros(size, bool) for _ in range(3))
        self.quaternions: list[slice] = []
        self.limits = {
            name: np.full(size, np.inf)
            for name in ('max_velocity', 'max_acceleration', 'max_jerk', 'reanchor')
        }
        references = {
            Reference.COMMANDED: self.commanded,
            Reference.MEASURED: self.measured,
            Reference.CHUNK_START: self.chunk_start,
        }
        for group, columns in spaces.target_slices(space):
            if group.kind.relative:
                references[group.reference][columns] = True
            else:
                self.fades[columns] = group.kind is not Kind.GRIPPER
            self.motion[columns] = group.kind is not Kind.GRIPPER
            self.rates[columns] = group.kind in VELOCITY_KINDS
            plain = 3 if group.kind.cartesian else group.size
            if group.rotation is not Rotation.NONE:
                self.quaternions.append(slice(columns.start + 3, columns.stop))
            target = slice(columns.start, columns.start + plain)
            for name in ('max_velocity', 'max_acceleration', 'max_jerk'):
                self.limits[name][target] = getattr(space, name)[group.start : group.start + plain]
            turning = not group.kind.cartesian and group.unit == 'rad'
            self.limits['reanchor'][target] = reanchor_rad if turning else reanchor_m


@dataclass(frozen=True, slots=True)
class Step:
    """
    A row (A,) that begins and the one after it, in whose direction it ends; policy units.

    Its target is reached at the plan time ``end_ns``. The fraction ``skipped`` of it is over:
    displacements shrink by that.
    """

    row: F32
    following: F32 | None
    end_ns: int
    dt_ns: int
    skipped: float = 0.0


@dataclass(slots=True)
class _Stop:
    target: F64
    velocity: F64
    since_ns: int
    duration_s: float


class Motion:
    """The target as it moves: smooth through the rows and across merges, or coming to rest."""

    def __init__(self, space: ActionSpace, columns: Columns, acceleration: float) -> None:
        self.columns = columns
        self.commanded: F64 | None = None  # target sent last
        self.reanchors = 0
        self._space = space
        self._acceleration = acceleration
        self._before = self._after = np.zeros(space.target_size)
        self._rate_before = self._rate_after = np.zeros(space.target_size)  # per row
        self._smooth = columns.motion & ~columns.rates
        for part in columns.quaternions:
            self._smooth[part] = False
        self._skipped = 0.0
        self._stop: _Stop | None = None
        self._faded: Plan | None = None
        self._fade_rows = self._fade_left = 0

    def start(self, anchor: F64, rate: F64) -> None:
        """
        Let the next row begin at ``anchor`` (T,).

        :param rate: shape (T,), velocity there per row
        """
        self._before = self._after = anchor
        self._rate_after = rate
        self._skipped = 0.0
        self._stop = None

    def fade_from(self, old: Plan | None, rows: int) -> None:
        """Fade from an old plan to the new one over its next ``rows`` rows."""
        self._faded, self._fade_rows = old, rows
        self._fade_left = rows if old is not None and self.columns.fades.any() else 0

    def enter(self, step: Step, measured: F64, chunk_start: F64) -> None:
        """
        Begin a row.

        :param measured: shape (T,), where the robot is now
        :param chunk_start: shape (T,), where it was when the chunk starts
        """
        columns, rest = self.columns, 1.0 - step.skipped
        reference = self._reference(measured, chunk_start)
        self._before, self._rate_before = self._after, self._rate_after
        if columns.commanded.any():
            self._reanchor(reference, measured)
        target = spaces.resolve_row(self._space, step.row, reference)
        if step.skipped > 0.0:
            moving = columns.commanded | columns.measured
            target[moving] = spaces.interpolate(self._space, reference, target, rest)[moving]
        self._fade(target, step.end_ns)
        self._fade_left = max(0, self._fade_left - 1)
        for part in columns.quaternions:
            if target[part] @ self._before[part] < 0.0:
                target[part] *= -1.0
        if self.commanded is None:  # by way of the measured width a held object would come loose
            self._before = np.where(columns.motion, self._before, target)
        self._after, self._skipped = target, step.skipped
        moved = target - self._before
        self._rate_after = moved / rest
        if step.following is not None:  # as it will be resolved if the robot follows this row
            reference = self._reference(measured + moved, chunk_start)
            ahead = spaces.resolve_row(self._space, step.following, reference)
            self._fade(ahead, step.end_ns + step.dt_ns)
            self._rate_after = spline.border_velocity(moved / rest, ahead - target)

    def _reference(self, measured: F64, chunk_start: F64) -> F64:
        """Return what the next row counts from, shape (T,)."""
        columns = self.columns
        reference: F64 = self._after.copy()
        reference[columns.measured] = measured[columns.measured]
        reference[columns.chunk_start] = chunk_start[columns.chunk_start]
        return reference

    def _reanchor(self, reference: F64, measured: F64) -> None:
        """Count from the measured pose where the guard has kept the robot from following."""
        gap = np.abs(reference - measured)
        if np.any(
            gap[self.columns.commanded] > self.columns.limits['reanchor'][self.columns.commanded]
        ):
            reference[self.columns.commanded] = measured[self.columns.commanded]
            self._before = np.where(self.columns.commanded, measured, self._before)
            self.reanchors += 1

    def _fade(self, target: F64, end_ns: int) -> None:
        if not self._fade_left or self._faded is None:
            return
        old = target_of(self._space, self._faded, end_ns)
        if old is None:  # the old chunk ends here
            return
        weight = (self._fade_rows - self._fade_left + 1) / (self._fade_rows + 1)
        mixed = spaces.interpolate(self._space, old, target, weight)
        target[self.columns.fades] = mixed[self.columns.fades]

    def at(self, fraction: float, slope: float, dt_s: float) -> tuple[F64, F64]:
        """
        Return target and velocity (T,), a fraction into the row.

        :param fraction: of the whole row, what was skipped included
        :param slope: plan time per ROS time; slowing keeps the path and scales the velocity
        """
        rest, smooth = 1.0 - self._skipped, self._smooth
        u = max(0.0, fraction - self._skipped) / rest
        target = spaces.interpolate(self._space, self._before, self._after, u)
        moved = self._after - self._before
        distance, bent = spline.piece(u, moved, rest * self._rate_before, rest * self._rate_after)
        target[smooth] = (self._before + distance)[smooth]
        change = np.where(smooth, bent, moved)
        return target, change * (slope / (rest * dt_s))

    def pace(self, dt_s: float) -> F64:
        """Return the mean velocity (T,) of the row under way, at full speed."""
        pace: F64 = (self._after - self._before) / ((1.0 - self._skipped) * dt_s)
        return pace

    @property
    def origin(self) -> F64:
        """Where the row under way began, shape (T,)."""
        return self._before

    @property
    def target(self) -> F64:
        """Where the row under way ends, shape (T,)."""
        return self._after

    @property
    def stopping(self) -> bool:
        """Whether the target is coming or has come to rest."""
        return self._stop is not None

    def stop(self, now_ns: int, velocity: F64 | None) -> None:
        """
        Come to rest from where the target is: at once, or by the space's acceleration limits.

        :param velocity: shape (T,), at which the row ended; None = at once
        """
        assert self.commanded is not None
        columns = self.columns
        speed = np.zeros_like(self.commanded) if velocity is None else velocity.copy()
        speed[~columns.motion | columns.rates] = 0.0
        for part in columns.quaternions:
            speed[part] = 0.0
        falling = np.where(columns.rates, self.commanded, speed) if velocity is not None else speed
        limit = self._acceleration * columns.limits['max_acceleration']
        duration = float(np.max(np.abs(falling) / limit, initial=0.0))
        self._stop = _Stop(self.commanded, speed, now_ns, duration)

    def resting(self, now_ns: int) -> tuple[F64, F64]:
        """Return target and velocity (T,) of a motion that comes to rest."""
        stop = self._stop
        assert stop is not None
        passed = seconds(now_ns - stop.since_ns)
        left = max(0.0, 1.0 - passed / stop.duration_s) if stop.duration_s > 0.0 else 0.0
        moved = 0.5 * stop.duration_s * (1.0 - left * left)
        target = stop.target + stop.velocity * moved
        target[self.columns.rates] = left * stop.target[self.columns.rates]
        return target, stop.velocity * left


def target_of(space: ActionSpace, plan: Plan, plan_ns: int) -> F64 | None:
    """
    Return what the absolute groups of a plan say for a plan time, shape (T,); None past its end.

    Rows beyond the horizon count: they are discarded for running, not for merging.
    """
    place = (plan_ns - plan.start_ns) / plan.dt_ns - 1.0
    row = int(np.floor(place + 1e-6))
    if row < 0 or row >= len(plan.actions):
        return None
    nothing = np.zeros(space.target_size)
    before = spaces.resolve_row(space, plan.actions[row], nothing)
    if row + 1 == len(plan.actions) or place - row < 1e-6:
        return before if place - row < 1e-6 else None
    after = spaces.resolve_row(space, plan.actions[row + 1], nothing)
    return spaces.interpolate(space, before, after, place - row)
