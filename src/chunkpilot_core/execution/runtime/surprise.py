"""
Cuts a horizon at once when the scene departs from what its chunk was planned on.

Smooth motion is not certain motion: a long horizon looks least often just while the arm reaches.
Observations arrive anyway, so comparing each with what the chunk in force implies costs no
inference. Works with every strategy; limits are metres and radians, from a conformal calibration
on undisturbed successful episodes (`chunkpilot calibrate surprise`) or the defaults, which suit
the shipped policies.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import math

from chunkpilot_core import spaces
from chunkpilot_core.execution.runtime import surprise_limits
from chunkpilot_core.execution.runtime.expectation import (
    Arm,
    ArmExpectation,
    Departure,
    GoalExpectation,
    ObjectExpectation,
    Snapshot,
    snapshot,
)
from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
from chunkpilot_core.smoothness import VELOCITY_KINDS
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    F32,
    F64,
    Id,
    Kind,
    nanoseconds,
    Observation,
    PolicySpec,
)
import numpy as np
from numpy.typing import NDArray

HISTORY = 256  # observations that are kept
KEPT = 4096  # chunks whose departures are kept for a calibration


@dataclass(slots=True)
class _Watch:
    """
    What one chunk implies; ``start`` is the observation that it was made of, None if not known.

    ``peaks`` are the largest departures by source, ``worst`` the largest beyond its limit.
    """

    chunk_id: Id
    start: Snapshot | None = None
    objects: dict[str, ObjectExpectation] = field(default_factory=dict)
    goal: GoalExpectation | None = None
    arm: ArmExpectation | None = None
    peaks: dict[str, float] = field(default_factory=dict)
    worst: tuple[float, Departure] | None = None
    told: bool = False


class Surprise:
    """Follows the observations and the chunk in force; says once per chunk what departed."""

    Config = SurpriseConfig

    def __init__(self, config: SurpriseConfig | None = None) -> None:
        """
        Make a monitor.

        :raises ConfigError: a feature without a limit, or a calibration that can't be read
        """
        self.config = config or SurpriseConfig()
        self.limits = self.config.limits()
        self.lag_ns = nanoseconds(self.config.arm_lag_s)
        self._calibration = (
            surprise_limits.load(self.config.calibration) if self.config.calibration else None
        )
        if self._calibration is not None:
            self.limits |= self._calibration.limits
        self._features = self.config.watched()
        self._columns: dict[str, NDArray[np.intp]] = {}
        self._history: deque[Snapshot] = deque(maxlen=HISTORY)
        self._past: deque[dict[str, float]] = deque(maxlen=KEPT)
        self._goal_since_ns = 0
        self._watch: _Watch | None = None

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy.

        :raises ConfigError: the limits were calibrated for another one
        """
        if self._calibration is not None:
            self._calibration.check(spec)
        self._columns = _columns(spec.space)

    def observe(
        self,
        observation: Observation,
        chunk: ActionChunk | None = None,
        row: float = 0.0,
        arm: Arm | None = None,
    ) -> str | None:
        """
        Take the newest observation.

        :param chunk: the chunk in force, None while there is none or its horizon is cut already
        :param row: how many of its rows were over at the observation
        :param arm: where the arm is and was sent, None if not known
        :returns: what is not as the chunk implies, once per chunk
        """
        now = snapshot(observation, self.config.max_age_s, arm)
        self._remember(now)
        if chunk is None:
            self._end()
            return None
        watch = self._watch
        news: tuple[Snapshot, ...] = (now,)
        if watch is None or watch.chunk_id != chunk.id:
            watch = self._begin(chunk)
            news = tuple(s for s in self._history if s.stamp_ns > chunk.observation_stamp_ns)
        for seen in news:
            for departure in self._departures(watch, seen):
                self._note(watch, departure)
        if chunk.expected_features is not None:
            error = prediction_error(chunk.expected_features, now.feature_row, row)
            if error is not None:
                self._note(watch, error)
        return self._tell(watch, now)

    def take(self) -> list[dict[str, float]]:
        """Return the largest departure of each source per chunk since the last call."""
        self._end()
        taken = list(self._past)
        self._past.clear()
        return taken

    def _remember(self, now: Snapshot) -> None:
        last = self._history[-1] if self._history else now
        if now.stamp_ns < last.stamp_ns or now.task_id != last.task_id:
            self._history.clear()
            self._goal_since_ns = 0
            self._end()
        self._history.append(now)

    def _end(self) -> None:
        if self._watch is not None and self._watch.peaks:
            self._past.append(self._watch.peaks)
        self._watch = None

    def _begin(self, chunk: ActionChunk) -> _Watch:
        """Expect from the chunk's observation on."""
        self._end()
        self._watch = watch = _Watch(chunk.id)
        before = [s for s in self._history if s.stamp_ns <= chunk.observation_stamp_ns]
        if before:  # else nothing is known of what the policy saw
            start = watch.start = before[-1]
            for name, seen in start.objects.items():
                watch.objects[name] = ObjectExpectation(name, seen, start, self.config.reach_m)
            steady = [s for s in before if s.stamp_ns >= self._goal_since_ns]
            watch.goal = GoalExpectation(steady, start, self.config.goal_moves)
            watch.arm = ArmExpectation(start.arm, self._columns) if start.arm else None
        return watch

    def _departures(self, watch: _Watch, now: Snapshot) -> Iterator[Departure]:
        if watch.start is None or watch.goal is None:
            return
        for name, expectation in watch.objects.items():
            yield from _known(expectation.step(now.objects.get(name), now))
        yield from _known(watch.goal.step(now))
        if now.arm is not None:
            if watch.arm is None:
                watch.arm = ArmExpectation(now.arm, self._columns)
            yield from watch.arm.step(now.arm)
        for name in self._features:
            change = abs(now.features.get(name, math.nan) - watch.start.features.get(name, 0.0))
            if math.isfinite(change):
                yield Departure(name, change, f'{name} changed by {change:.3g}')

    def _note(self, watch: _Watch, departure: Departure) -> None:
        source, distance = departure.source, departure.distance
        watch.peaks[source] = max(watch.peaks.get(source, 0.0), distance)
        limit = self._features.get(source) or self.limits.get(source, 0.0)
        share = distance / limit if limit > 0.0 else 0.0
        if share > 1.0 and (watch.worst is None or share > watch.worst[0]):
            watch.worst = share, departure

    def _tell(self, watch: _Watch, now: Snapshot) -> str | None:
        if watch.told or watch.worst is None:
            return None
        watch.told = True
        departure = watch.worst[1]
        if departure.source == 'goal':
            self._goal_since_ns = now.stamp_ns  # what it did before says nothing any more
        return departure.text


def monitor(config: SurpriseConfig | Surprise | None) -> Surprise | None:
    """Return a monitor if one is wanted: a given one, or one of an enabled configuration."""
    if isinstance(config, SurpriseConfig):
        return Surprise(config) if config.enabled else None
    return config


def prediction_error(expected: F32, seen: F64, row: float) -> Departure | None:
    """
    Compare with what a policy predicted to observe.

    :param expected: features after each row, shape (H, F)
    :param seen: features now, shape (F,), NaN where unknown
    :param row: how many rows are over; between two the prediction is interpolated
    :returns: None before the end of row 0, after the last, or for other features
    """
    at = row - 1.0
    if expected.shape[1] != len(seen) or not 0.0 <= at <= len(expected) - 1:
        return None
    before = int(at)
    after = min(before + 1, len(expected) - 1)
    share = at - before
    error = seen - ((1.0 - share) * expected[before] + share * expected[after])
    known = error[np.isfinite(error)]
    if not len(known):
        return None
    rms = float(np.sqrt(np.mean(known**2)))
    return Departure('expected', rms, f'prediction of the policy off by {rms:.3g}')


def _known(departure: Departure | None) -> Sequence[Departure]:
    known = departure is not None and math.isfinite(departure.distance)
    return (departure,) if departure is not None and known else ()


def _columns(space: ActionSpace) -> dict[str, NDArray[np.intp]]:
    """Return which columns of a target are a place [m], and which joints [rad]."""
    places: list[int] = []
    joints: list[int] = []
    for group, part in spaces.target_slices(space):
        if group.kind is Kind.GRIPPER or group.kind in VELOCITY_KINDS:
            continue
        if group.kind.cartesian:
            places += range(part.start, part.start + 3)
        else:
            joints += range(part.start, part.stop)
    found = {'arm': np.array(places, np.intp), 'joints': np.array(joints, np.intp)}
    return {source: columns for source, columns in found.items() if len(columns)}
