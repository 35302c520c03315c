"""The rows that the guard sent during an episode, as a path that can be sampled on any grid."""

from collections.abc import Sequence
from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.bags.episodes import Episode
from chunkpilot_core.errors import BagError
from chunkpilot_core.sent_path import SentPath, SLACK_NS
from chunkpilot_core.types import (
    ActionSpace,
    ExecutedRows,
    F32,
    F64,
    nanoseconds,
    Reference,
    RowSource,
)
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Rows:
    """N rows in order of time: [start, end) in ns, values (N, A), sources (N,)."""

    space: ActionSpace
    dt_s: float
    starts_ns: I64
    ends_ns: I64
    values: F32
    sources: U8

    @classmethod
    def of(cls, episode: Episode, longest: float) -> 'Rows':
        """
        Put the rows of an episode in order.

        :param longest: periods that a row may have taken; longer is a pause before it
        :raises BagError: none, of several spaces or shapes, or with numbers that make no sense
        """
        batches = [batch for batch in episode.rows if batch.episode_id in ('', episode.id)]
        if not any(len(batch.rows) for batch in batches):
            others = sorted({batch.episode_id for batch in episode.rows})
            hint = f', only of {", ".join(others)}' if others else ''
            raise BagError(f'no executed rows of episode {episode.id!r} were recorded{hint}')
        space = _space_of(episode, batches)
        dt_s = batches[0].dt_s
        if not 1e-4 <= dt_s <= 10.0:
            raise BagError(f'executed rows with dt {dt_s} s, allowed 0.0001 to 10 s')
        found = _by_end(batches, space.size)
        ends = np.array(sorted(found), np.int64)
        values = np.array([found[end][1] for end in ends.tolist()], np.float32)
        if not np.isfinite(values).all():
            raise BagError('executed rows hold numbers that are not finite')
        lengths = np.array([found[end][0] for end in ends.tolist()], np.int64)
        starts = ends - lengths
        # the guard's rows follow one another; on a busy machine one takes longer than it should
        late = np.diff(ends) <= longest * lengths[1:] + SLACK_NS
        starts[1:] = np.where(late, ends[:-1], np.maximum(starts[1:], ends[:-1]))
        sources = np.array([found[end][2] for end in ends.tolist()], np.uint8)
        return cls(space, dt_s, starts, ends, values, sources)

    def at(self, grid: I64) -> tuple[F32, U8, NDArray[np.bool_]]:
        """Return actions (T, A), sources (T,), and whether rows fill each frame (T,)."""
        middle = (grid[:-1] + grid[1:]) // 2
        row = np.minimum(np.searchsorted(self.ends_ns, middle, side='left'), len(self.ends_ns) - 1)
        on_grid = (np.abs(self.starts_ns[row] - grid[:-1]) <= SLACK_NS) & (
            np.abs(self.ends_ns[row] - grid[1:]) <= SLACK_NS
        )
        actions = self.values[row]
        sent = on_grid.copy()
        if not on_grid.all() and self._integrable:
            path = self._path()
            sent |= path.allowed(grid)
            between = np.flatnonzero(~on_grid & sent)
            if len(between):
                targets = path.at(grid)
                for i in between.tolist():
                    actions[i] = spaces.to_row(self.space, targets[i + 1], targets[i])
                # a row that lasted a little too long is more than a row may ask for
                actions[between] = np.clip(actions[between], self.space.lower, self.space.upper)
        actions[~sent] = 0.0
        return actions, self.sources[row], sent

    @property
    def _integrable(self) -> bool:
        return all(group.reference is not Reference.MEASURED for group in self.space.groups)

    def _path(self) -> SentPath:
        """Return the path of targets; relative groups begin anywhere, only differences count."""
        space = self.space
        origin: F64 = np.zeros(space.target_size)
        for group, columns in spaces.target_slices(space):
            if group.target_size == 7:
                origin[columns.stop - 1] = 1.0  # no rotation
        targets = spaces.resolve(space, self.values, origin)
        joined = self.starts_ns[1:] == self.ends_ns[:-1]
        knots, reached, good = [self.starts_ns[0]], [self._before(0, targets, origin)], [False]
        for i, end in enumerate(self.ends_ns.tolist()):
            if i and not joined[i - 1]:
                knots.append(self.starts_ns[i])
                reached.append(self._before(i, targets, targets[i - 1]))
                good.append(False)
            knots.append(end)
            reached.append(targets[i])
            good.append(True)
        return SentPath(space, np.array(knots, np.int64), np.array(reached), np.array(good))

    def _before(self, i: int, targets: F64, last: F64) -> F64:
        """Return where a stretch of rows began: absolute groups are there from its start."""
        out: F64 = targets[i].copy()
        for group, columns in spaces.target_slices(self.space):
            if group.kind.relative:
                out[columns] = last[columns]
        return out


def _space_of(episode: Episode, batches: Sequence[ExecutedRows]) -> ActionSpace:
    hashes = {batch.space_hash for batch in batches}
    if len(hashes) > 1:
        raise BagError(f'executed rows of several action spaces: {", ".join(sorted(hashes))}')
    own = next(iter(hashes))
    if own not in episode.spaces:
        raise BagError(
            f'executed rows of action space {own!r}, which no policy/info defines; known: '
            f'{", ".join(episode.spaces) or "none"}'
        )
    space = episode.spaces[own]
    for group in space.groups:
        if group.reference is Reference.CHUNK_START:
            raise BagError(
                f'rows of group {group.name!r} are relative to the start of their chunk: frames '
                'need rows that are absolute, or relative to what was commanded or measured'
            )
    return space


def _by_end(batches: Sequence[ExecutedRows], size: int) -> dict[int, tuple[int, F32, RowSource]]:
    """Return length [ns], values and source of each row by its end; what came twice is one."""
    found: dict[int, tuple[int, F32, RowSource]] = {}
    for batch in batches:
        if batch.rows.shape != (len(batch.stamps_ns), size):
            raise BagError(
                f'executed rows of shape {batch.rows.shape} with {len(batch.stamps_ns)} stamps, '
                f'the action space has {size} columns'
            )
        length_ns = nanoseconds(batch.dt_s)
        for row, source, end_ns in zip(batch.rows, batch.sources, batch.stamps_ns, strict=True):
            found[end_ns] = (length_ns, row, source)
    return found
