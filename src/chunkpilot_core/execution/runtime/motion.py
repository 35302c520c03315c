"""
From rows to absolute targets at the control rate: anchors, interpolation, merges, stopping.

Within a row the target follows a cubic that meets the row's target on time and whose velocity is
continuous from row to row and over merges. A straight line would kick the arm at each row border,
by more than its acceleration limit as soon as the policy changes speed by 5 cm/s.
"""

from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.execution.runtime import spline
from chunkpilot_core.execution.runtime.columns import Columns
from chunkpilot_core.execution.runtime.merge import Merge
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.types import ActionSpace, F32, F64, seconds
import numpy as np


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

    def __init__(self, space: ActionSpace, config: ExecutionConfig) -> None:
        self.columns = columns = Columns(space, config.reanchor_m, config.reanchor_rad)
        self.merge = Merge(space, columns, config)
        self.commanded: F64 | None = None  # target sent last
        self.reanchors = 0
        self._space = space
        self._acceleration = config.stop_acceleration
        self._before = self._after = np.zeros(space.target_size)
        self._rate_before = self._rate_after = np.zeros(space.target_size)  # per row
        self._smooth = columns.motion & ~columns.rates
        for part in columns.quaternions:
            self._smooth[part] = False
        self._skipped = 0.0
        self._stop: _Stop | None = None

    def start(self, anchor: F64, rate: F64) -> None:
        """
        Let the next row begin at ``anchor`` (T,).

        :param rate: shape (T,), velocity there per row
        """
        self._before = self._after = anchor
        self._rate_after = rate
        self._skipped = 0.0
        self._stop = None

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
        self.merge.passed(step.end_ns - step.dt_ns)
        self.merge.apply(target, step.end_ns)
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
            self.merge.apply(ahead, step.end_ns + step.dt_ns)
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

    def at(self, fraction: float, slope: float, dt_s: float) -> tuple[F64, F64]:
        """
        Return target and velocity (T,), a fraction into the row.

        :param fraction: of the whole row, what was skipped included
        :param slope: plan time per ROS time; slowing keeps the path and scales the velocity
        """
        rest, smooth = 1.0 - self._skipped, self._smooth
        u = max(0.0, fraction - self._skipped) / rest
        moved = self._after - self._before
        if self.columns.quaternions:
            target = spaces.interpolate(self._space, self._before, self._after, u)
        else:
            target = self._before + u * moved
        distance, bent = spline.piece(u, moved, rest * self._rate_before, rest * self._rate_after)
        np.add(self._before, distance, out=target, where=smooth)
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
