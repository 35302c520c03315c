"""
A recorded episode as aligned frames: what was seen, and the row that was sent from then on.

Rows of successive chunks lie on grids of different phase and a replaced chunk ends inside a row,
so the path of what the guard sent is sampled anew on one grid with the policy's period. A row
whose borders lie on the grid is taken as it is, bit by bit. The phase of the grid is that of the
observations where they have one, so that a frame's observation is as fresh as in deployment.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chunkpilot_core.bags import episodes, frame_images
from chunkpilot_core.bags.frame_rows import Rows
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.sent_path import SLACK_NS
from chunkpilot_core.types import (
    ActionSpace,
    EpisodeOutcome,
    F32,
    nanoseconds,
    Observation,
)
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
PHASES = 32  # phases of the observations that are tried


@dataclass(frozen=True)
class FrameOptions:
    """How an episode becomes frames."""

    dt_s: float = option(
        0.0, 'time between frames; 0 = that of the rows', unit='s', min=0.0, max=10.0
    )
    max_skew_s: float = option(
        0.1, 'an observation older than this makes a frame invalid', unit='s', min=0.0, max=60.0
    )
    longest_row: float = option(
        2.5,
        'a row that took up to so many periods was a late one; longer is a pause before it',
        min=1.0,
        max=100.0,
    )
    cameras: tuple[str, ...] = option((), 'cameras whose images are taken, too')
    max_image_age_s: float = option(
        1.0, 'a frame without an image as young as this is invalid', unit='s', min=0.0, max=60.0
    )
    max_frames: int = option(
        100_000, 'an episode with more is refused: its stamps are damaged', min=1, max=10**7
    )


@dataclass(frozen=True, slots=True)
class Frames:
    """
    One episode of T frames, ``dt_s`` apart at ``stamps_ns`` (T,).

    ``state`` (T, S), ``features`` (T, F) and ``goal`` (T, G) are of the newest observation whose
    stamp is not after the frame's; ``skew_s`` (T,) is how old that was. NaN = unknown. ``actions``
    (T, A) is what the guard sent during [stamp, stamp + dt), ``source`` (T,) the
    :class:`RowSource` of most of it. ``valid`` (T,): an observation is fresh enough and rows
    were sent during the whole frame; others hold zeros where nothing is known.
    """

    episode_id: str
    dt_s: float
    space: ActionSpace
    stamps_ns: I64
    state_names: tuple[str, ...]
    state: F32
    feature_names: tuple[str, ...]
    features: F32
    goal_names: tuple[str, ...]
    goal: F32
    actions: F32
    source: U8
    valid: NDArray[np.bool_]
    skew_s: F32
    outcome: EpisodeOutcome = EpisodeOutcome.UNKNOWN
    reward: float = 0.0
    task_kind: str = ''
    task_text: str = ''
    metadata: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, U8] = field(default_factory=dict)
    """Of each camera (T, rows, columns, 3) RGB; only where asked for."""

    def __len__(self) -> int:
        return len(self.stamps_ns)

    @property
    def success(self) -> bool:
        """Whether the task was done."""
        return self.outcome is EpisodeOutcome.SUCCESS

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all inputs: state, features, goal."""
        return self.state_names + self.feature_names + self.goal_names

    def inputs(self, names: Sequence[str]) -> F32:
        """
        Return named inputs, shape (T, len(names)).

        :raises UnknownNameError: a name that was not observed
        """
        index = {name: i for i, name in enumerate(self.names)}
        for name in names:
            if name not in index:
                raise UnknownNameError('observation entry', name, index)
        everything = np.concatenate((self.state, self.features, self.goal), axis=1)
        return everything[:, [index[name] for name in names]]


def load(path: str | Path, options: FrameOptions | None = None) -> Frames:
    """
    Read the bag of one episode.

    :raises BagError: it can't be read, or has no observations, rows or action space
    """
    options = options or FrameOptions()
    try:
        frames = align(episodes.load(path, without=('chunk',)), options)
        if not options.cameras:
            return frames
        images, seen = frame_images.load(
            path, frames.stamps_ns, options.cameras, options.max_image_age_s
        )
        return replace(frames, images=images, valid=frames.valid & seen)
    except BagError as error:
        if str(path) in str(error):
            raise
        raise BagError(f'{path}: {error}') from error


def align(episode: episodes.Episode, options: FrameOptions | None = None) -> Frames:
    """
    Put what was recorded of an episode on one grid.

    :raises BagError: no observations or rows, an unknown action space or one whose rows mean
        nothing on their own, or stamps that are damaged
    """
    options = options or FrameOptions()
    rows = Rows.of(episode, options.longest_row)
    names, seen = _observations(episode.observations)
    seen_ns = np.array([observation.stamp_ns for observation in seen], np.int64)
    dt_s = options.dt_s or rows.dt_s
    grid = _grid(rows, seen_ns, nanoseconds(dt_s), options.max_frames)
    actions, source, sent = rows.at(grid)
    stamps_ns = grid[:-1]
    newest = np.searchsorted(seen_ns, stamps_ns, side='right') - 1
    known = newest >= 0
    newest = np.maximum(newest, 0)
    skew_s = ((stamps_ns - seen_ns[newest]) / 1e9).astype(np.float32)
    fresh = known & (skew_s <= np.float32(options.max_skew_s))
    parts = [
        np.array([getattr(observation, part) for observation in seen], np.float32)[newest]
        for part in ('state', 'features', 'goal')
    ]
    for part in parts:
        part[~known] = np.nan  # before the first observation
    task = episode.task
    return Frames(
        episode.id,
        dt_s,
        rows.space,
        stamps_ns,
        names[0],
        parts[0],
        names[1],
        parts[1],
        names[2],
        parts[2],
        actions,
        source,
        sent & fresh,
        skew_s,
        episode.outcome,
        episode.reward,
        task.kind if task else '',
        task.text if task else '',
        episode.metadata,
    )


Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def _observations(observations: Sequence[Observation]) -> tuple[Names, list[Observation]]:
    """Return the names that most observations have, and those, in order of stamps, each once."""
    named = [(o.state_names, o.feature_names, o.goal_names) for o in observations]
    if not named:
        raise BagError('no observations were recorded')
    names: Names = Counter(named).most_common(1)[0][0]
    kept = {
        observation.stamp_ns: observation
        for observation, own in zip(observations, named, strict=True)
        if own == names
        and (len(observation.state), len(observation.features), len(observation.goal))
        == tuple(map(len, names))
    }
    if not kept:
        raise BagError('observations have other numbers of values than of names')
    return names, [kept[stamp] for stamp in sorted(kept)]


def _grid(rows: Rows, seen_ns: I64, dt_ns: int, most: int) -> I64:
    """Return the borders (T + 1,) of frames: phase of the rows, or better of the observations."""
    first, end = int(rows.starts_ns[0]), int(rows.ends_ns[-1])
    count = (end - first + SLACK_NS) // dt_ns
    if count > most:
        raise BagError(
            f'rows from {first} to {end} ns make {count} frames of {dt_ns / 1e9:g} s, '
            f'at most {most} allowed'
        )
    if count < 1:
        raise BagError(f'rows of {(end - first) / 1e9:g} s, a frame needs {dt_ns / 1e9:g} s')
    best = first + dt_ns * np.arange(count + 1)
    best_skew = _mean_skew(best, seen_ns)
    inside = seen_ns[(seen_ns >= first) & (seen_ns < end)]
    phases = np.unique((inside - first) % dt_ns)
    chosen = phases[np.linspace(0, len(phases) - 1, PHASES).astype(int)] if len(phases) else phases
    for phase in np.unique(chosen).tolist():
        frames = (end - first - phase + SLACK_NS) // dt_ns
        if frames < 1:
            continue
        grid = first + phase + dt_ns * np.arange(frames + 1)
        skew = _mean_skew(grid, seen_ns)
        if skew < best_skew - SLACK_NS:
            best, best_skew = grid, skew
    return best


def _mean_skew(grid: I64, seen_ns: I64) -> float:
    newest = np.searchsorted(seen_ns, grid[:-1], side='right') - 1
    known = newest >= 0
    age = (grid[:-1] - seen_ns[np.maximum(newest, 0)])[known]
    return float(np.minimum(age, 10**9).mean()) if len(age) else float('inf')


__all__ = ['FrameOptions', 'Frames', 'align', 'load']
