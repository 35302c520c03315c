"""What a detector may know when a chunk comes; the same in a guard, a bag and a calibration."""

from dataclasses import dataclass, field
from functools import cached_property

from chunkpilot_core import smoothness, spaces
from chunkpilot_core.safety.base import Situation
from chunkpilot_core.smoothness import MotionScale
from chunkpilot_core.types import ActionChunk, ActionSpace, F32, F64, nanoseconds, seconds
import numpy as np


@dataclass(frozen=True)
class Moment:
    """
    The arrival of a chunk.

    ``state`` (D,) are state and features of the newest observation, empty where there is none;
    ``elapsed_s`` counts from the start of the episode.
    """

    chunk: ActionChunk
    before: ActionChunk | None
    space: ActionSpace
    state: F32
    elapsed_s: float

    @cached_property
    def scale(self) -> MotionScale:
        """How rows become velocities, in fractions of the limits."""
        return motion_scale(self.space, self.chunk.dt_s)

    @cached_property
    def velocities(self) -> F64:
        """Velocity of every row, shape (H, M), in fractions of the limits; grippers left out."""
        rows = self.chunk.actions
        return smoothness.velocities(self.scale, rows, rows[0])

    @cached_property
    def way(self) -> float:
        """Way of the chunk: of its motion in limits times rows, and of its grippers."""
        grips = np.delete(self.chunk.actions, self.scale.columns, axis=1)
        turned = float(np.abs(np.diff(grips, axis=0)).sum()) if grips.size else 0.0
        return float(np.abs(self.velocities).sum()) + turned

    @cached_property
    def shift(self) -> int:
        """By how many rows the chunk starts after the one before; -1 where they do not overlap."""
        if self.before is None or self.before.dt_s != self.chunk.dt_s:
            return -1
        rows = round((self.chunk.start_ns - self.before.start_ns) / nanoseconds(self.chunk.dt_s))
        return rows if 0 < rows < self.before.horizon else -1

    @property
    def grip(self) -> float:
        """Gripper column of the row that is due, 0 where there is none."""
        motion = spaces.motion_columns(self.space)
        columns = np.flatnonzero(~motion)
        late = (self.chunk.stamp_ns or self.chunk.start_ns) - self.chunk.start_ns
        row = min(max(late // nanoseconds(self.chunk.dt_s), 0), self.chunk.horizon - 1)
        return float(self.chunk.actions[row, columns[0]]) if columns.size else 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """The moments of a successful episode, and how long it took."""

    moments: tuple[Moment, ...]
    duration_s: float


@dataclass(slots=True)
class Witness:
    """Collects the moments of an episode; a guard tells it each."""

    moments: list[Moment] = field(default_factory=list)

    def __call__(self, moment: Moment) -> None:
        """Keep a moment."""
        self.moments.append(moment)


_scales: dict[tuple[str, float], MotionScale] = {}


def motion_scale(space: ActionSpace, dt_s: float) -> MotionScale:
    """Return :func:`smoothness.motion_scale`, made once for each space."""
    found = _scales.get((space.hash, dt_s))
    if found is None:
        found = _scales[space.hash, dt_s] = smoothness.motion_scale(space, dt_s)
    return found


def moment_of(situation: Situation) -> Moment | None:
    """Return what is known of the chunk that has just come; None without an action space."""
    if situation.space is None or not situation.chunks:
        return None
    heard = situation.chunks[-1]
    before = situation.chunks[-2].chunk if len(situation.chunks) > 1 else None
    seen = situation.observation
    state: F32 = np.zeros(0, np.float32)
    if seen is not None:
        state = np.concatenate((seen.state, seen.features))
    elapsed_s = 0.0
    if situation.episode_ns:
        elapsed_s = seconds(heard.received_ns - situation.episode_ns)
    return Moment(heard.chunk, before, situation.space, state, elapsed_s)
