"""
What should be observed while a chunk runs: where objects, goal and arm are if nothing happens.

An object that nobody touches stays where it was when the chunk's observation was made, a held one
goes with the tool, one that the fingers reach may go along with them as far as they go; a goal
goes on as it went; the arm is on the path that it was sent along.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
import math

from chunkpilot_core.types import F64, NS_PER_S, ObjectStatus, Observation, seconds
import numpy as np
from numpy.typing import NDArray

OPENED_M = 0.008  # fingers so much wider than when they held something have let it go
GOAL_WINDOW_S = 0.3  # of its history from which a goal's velocity is taken
GOAL_SPAN_S = 0.1  # with less history the velocity is not known


@dataclass(frozen=True, slots=True)
class Seen:
    """One object in one observation: ``position`` (3,) [m]."""

    position: F64
    held: bool


@dataclass(frozen=True, slots=True)
class Arm:
    """
    The robot's targets (T,): ``measured``, and ``path`` (K, T), what was commanded lately.
    """

    measured: F64
    path: F64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is kept of an observation; ``tool`` (3,) [m] is NaN and ``width`` [m] 0 if unknown."""

    stamp_ns: int
    task_id: str
    tool: F64
    width: float
    objects: Mapping[str, Seen]
    goal: F64
    features: Mapping[str, float]
    feature_row: F64
    arm: Arm | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """How far something is from where it should be: ``source`` names its limit in the config."""

    source: str
    distance: float
    text: str


def snapshot(observation: Observation, max_age_s: float, arm: Arm | None = None) -> Snapshot:
    """
    Return what matters of an observation.

    :param max_age_s: objects last seen longer ago are left out, as lost and unknown ones are
    """
    state = dict(zip(observation.state_names, observation.state.tolist(), strict=False))
    tool = np.array([state.get(f'ee.{axis}', math.nan) for axis in 'xyz'])
    values = observation.features.astype(np.float64)
    return Snapshot(
        observation.stamp_ns,
        observation.task_id,
        tool,
        state.get('gripper.width', 0.0),
        _objects(observation, values, max_age_s),
        observation.goal.astype(np.float64),
        dict(zip(observation.feature_names, values.tolist(), strict=False)),
        values,
        arm,
    )


def _objects(observation: Observation, values: F64, max_age_s: float) -> dict[str, Seen]:
    found = {}
    for name, at, held_at, age_at in _columns(observation.feature_names):
        position = values[at : at + 3]
        held = held_at >= 0 and values[held_at] > 0.5
        age_s = values[age_at] if age_at >= 0 and not held else 0.0
        if np.isfinite(position).all() and age_s <= max_age_s:
            found[name] = Seen(position, bool(held))
    for entry in observation.objects:
        held = entry.status is ObjectStatus.HELD
        age_s = 0.0 if held else seconds(observation.stamp_ns - entry.stamp_ns)
        known = entry.status is not ObjectStatus.LOST and age_s <= max_age_s
        if known and np.isfinite(entry.position).all():
            found[entry.name] = Seen(entry.position, held)
        else:
            found.pop(entry.name, None)
    return found


@lru_cache(maxsize=16)
def _columns(names: tuple[str, ...]) -> tuple[tuple[str, int, int, int], ...]:
    """Return per object its name and the columns of x (then y, z), held and age; -1 = none."""
    found = []
    for i, entry in enumerate(names):
        name, dot, part = entry.rpartition('.')
        if dot and part == 'x' and names[i + 1 : i + 3] == (f'{name}.y', f'{name}.z'):
            more = [names.index(f'{name}.{p}') if f'{name}.{p}' in names else -1 for p in _MORE]
            found.append((name, i, more[0], more[1]))
    return tuple(found)


_MORE = ('held', 'age')


class ObjectExpectation:
    """Where one object should be, from the observation behind a chunk up to now."""

    def __init__(self, name: str, seen: Seen, start: Snapshot, contact_m: float) -> None:
        """
        Begin at the chunk's observation.

        :param contact_m: nearer to the tool than this an object may be pushed
        """
        self._name = name
        self._contact_m = contact_m
        self._place, self._held = seen.position, seen.held
        self._tool, self._width = start.tool, start.width
        self._path: list[F64] = []  # of the tool since it reached the object
        self._touch(seen, start)

    def step(self, seen: Seen | None, now: Snapshot) -> Departure | None:
        """
        Follow one observation.

        :param seen: the object in it, None while it is hidden, lost or unknown
        """
        if self._held:
            self._place = self._place + (now.tool - self._tool)
        elif self._path:
            self._path.append(self._path[-1] + (now.tool - self._tool))
        self._tool = now.tool
        if seen is None:
            return None
        if seen.held != self._held:
            return self._change(seen, now)
        if self._held:
            self._width = now.width
            distance = float(np.linalg.norm(seen.position - self._place))
            return Departure('held', distance, f'{self._name} slid {_cm(distance)} in the gripper')
        self._touch(seen, now)
        distance = self._beyond(seen.position - self._place, now.width)
        source = 'contact' if self._path else 'object'
        return Departure(source, distance, f'{self._name} moved {_cm(distance)}')

    def _change(self, seen: Seen, now: Snapshot) -> Departure | None:
        """Go on from where an object was grasped or let go; both are what the rows wanted."""
        dropped = self._held and now.width < self._width + OPENED_M
        self._place, self._held = seen.position, seen.held
        self._width = now.width
        self._path = [np.zeros(3)]
        return Departure('grip', 1.0, f'{self._name} left the gripper') if dropped else None

    def _touch(self, seen: Seen, now: Snapshot) -> None:
        near = np.linalg.norm(now.tool - seen.position) < self._contact_m
        if not self._path and not self._held and near:
            self._path, self._width = [np.zeros(3)], now.width

    def _beyond(self, moved: F64, width: float) -> float:
        """Return how far a displacement (3,) is from what the fingers may have done to it [m]."""
        if not self._path:
            return float(np.linalg.norm(moved))
        ways = np.array(self._path)
        lengths = np.maximum(np.einsum('ij,ij->i', ways, ways), 1e-12)
        share = np.clip(ways @ moved / lengths, 0.0, 1.0)
        nearest = float(np.min(np.linalg.norm(moved - share[:, None] * ways, axis=1)))
        return max(0.0, nearest - max(0.0, self._width - width) / 2)  # closing fingers push, too


class GoalExpectation:
    """Where the goal should be: it goes on as it went before the chunk's observation."""

    def __init__(self, history: Iterable[Snapshot], start: Snapshot, moves: bool) -> None:
        """
        Begin at the chunk's observation.

        :param history: oldest first, up to ``start``; where the goal jumped nothing before counts
        :param moves: whether a goal is expected to go on, else to stay
        """
        since_ns = start.stamp_ns - round(GOAL_WINDOW_S * NS_PER_S)
        same = [s for s in history if s.stamp_ns >= since_ns and s.goal.shape == start.goal.shape]
        self._points = [(s.stamp_ns, s.goal) for s in same]
        self._start_ns, self._place = start.stamp_ns, start.goal
        self._velocity: F64 | None = None if moves else np.zeros_like(start.goal)
        self._learn()

    def step(self, now: Snapshot) -> Departure | None:
        """Follow one observation; nothing is said until the goal's velocity is known."""
        if now.goal.shape != self._place.shape or not now.goal.size:
            return None
        if self._velocity is None:
            self._points.append((now.stamp_ns, now.goal))
            self._start_ns, self._place = now.stamp_ns, now.goal
            self._learn()
            return None
        passed_s = seconds(now.stamp_ns - self._start_ns)
        off = now.goal - (self._place + passed_s * self._velocity)
        points = off.reshape(-1, 3) if off.size % 3 == 0 else off[:, None]
        distance = float(np.linalg.norm(points, axis=1).max())
        return Departure('goal', distance, f'goal moved {_cm(distance)}')

    def _learn(self) -> None:
        if self._velocity is not None or not self._points:
            return
        times = np.array([seconds(ns - self._points[0][0]) for ns, _ in self._points])
        if times[-1] < GOAL_SPAN_S:
            return
        away = times - times.mean()
        places = np.array([place for _, place in self._points])
        self._velocity = away @ (places - places.mean(axis=0)) / (away @ away)


class ArmExpectation:
    """The arm is on the path that it was sent along lately, or at most as far off as it was."""

    def __init__(self, start: Arm, columns: Mapping[str, NDArray[np.intp]]) -> None:
        """
        Begin at the chunk's observation.

        :param columns: of a target, by source: ``arm`` is a place [m], ``joints`` angles [rad]
        """
        self._columns = columns
        self._off = {}
        for source, part in columns.items():
            apart = start.measured[part] - start.path[:, part]
            self._off[source] = apart[int(np.argmin(np.linalg.norm(apart, axis=1)))]

    def step(self, arm: Arm) -> Iterable[Departure]:
        """Follow one observation."""
        for source, part in self._columns.items():
            apart, off = arm.measured[part] - arm.path[:, part], self._off[source]
            share = np.clip(apart @ off / max(float(off @ off), 1e-12), 0.0, 1.0)
            distance = float(np.linalg.norm(apart - share[:, None] * off, axis=1).min())
            far = _cm(distance) if source == 'arm' else f'{distance:.3f} rad'
            yield Departure(source, distance, f'arm pushed {far}')


def _cm(distance: float) -> str:
    return f'{100 * distance:.1f} cm'
