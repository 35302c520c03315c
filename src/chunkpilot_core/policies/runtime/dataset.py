"""
Training data: overlapping chunks, cut out of rows that lie in memory or in memory-mapped files.

Rows of all episodes stand one after the other. A chunk may start at any row that is not left out;
batches are gathered when they are asked for, so that data may be larger than the memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import hashlib

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.runtime.net_policy import Batch
from chunkpilot_core.types import F32
import numpy as np
from numpy.typing import NDArray
import torch

BLOCK_ROWS = 16384  # rows looked at together where all of them are: a few megabytes
I64 = NDArray[np.int64]
Table = tuple[F32, Sequence[int]]
"""Numbers (N, M), and which of the columns are inputs."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """
    Chunks of N rows.

    ``tables`` hold the inputs, side by side; ``actions`` (N, A); ``borders`` (E + 1,): where
    episodes begin and end. ``starts`` (C,): rows at which the C chunks start; ``stops`` (N,): one
    past the last row that a chunk which starts there may hold. ``weights`` (N,): how much a row
    counts in the loss, 0 = not at all. ``sha256`` is of the numbers in ``tables`` and
    ``actions``.
    """

    tables: tuple[Table, ...]
    actions: F32
    borders: I64
    starts: I64
    stops: I64
    weights: F32
    horizon: int
    sha256: str

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def fingerprint(self) -> str:
        """Hash of the data, of what is learned from it and how it is cut."""
        digest = hashlib.sha256(f'{self.sha256} {self.horizon}'.encode())
        for part in (self.starts, self.stops, self.weights):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def inputs(self, rows: I64) -> F32:
        """Return the inputs (B, I) of rows (B,)."""
        parts = [np.asarray(table[rows])[:, list(columns)] for table, columns in self.tables]
        return np.concatenate(parts, axis=1).astype(np.float32, copy=False)

    def batch(self, picks: I64) -> Batch:
        """
        Return the chunks with numbers ``picks`` (B,).

        Beyond its episode a chunk repeats the last row; beyond ``stops`` it holds what was there,
        which counts nothing.
        """
        first = self.starts[picks]
        index = first[:, None] + np.arange(self.horizon)
        ends = self.borders[self._episode_of(first) + 1]
        inside = np.minimum(index, ends[:, None] - 1)
        weights = np.where(index < self.stops[first][:, None], self.weights[inside], 0.0)
        actions = np.asarray(self.actions[inside], np.float32)
        actions[~np.isfinite(actions)] = 0.0  # such rows weigh nothing, but 0 times NaN is NaN
        return Batch(
            torch.from_numpy(self.inputs(first)),
            torch.from_numpy(actions),
            torch.from_numpy(weights.astype(np.float32)),
        )

    def spread(self, count: int) -> I64:
        """Return at most ``count`` numbers of chunks, evenly over all of them."""
        return np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64))

    def episodes(self) -> list[int]:
        """Return the numbers of the episodes in which chunks start."""
        return [int(number) for number in np.unique(self._episode_of(self.starts))]

    def only(self, episodes: Sequence[int]) -> 'Dataset':
        """Return the chunks that start in the given episodes; the rows stay where they are."""
        chosen = np.isin(self._episode_of(self.starts), np.asarray(episodes, np.int64))
        return replace(self, starts=self.starts[chosen])

    def _episode_of(self, rows: I64) -> I64:
        return np.searchsorted(self.borders, rows, side='right') - 1

    def blocks(self) -> Iterator[tuple[F32, F32]]:
        """Iterate over inputs (n, I) and actions (n, A) of all rows at which chunks start."""
        for at in range(0, len(self), BLOCK_ROWS):
            rows = self.starts[at : at + BLOCK_ROWS]
            learned = rows[self.weights[rows] > 0.0]
            yield self.inputs(rows), np.asarray(self.actions[learned], np.float32)


def build(
    tables: Sequence[Table],
    actions: F32,
    lengths: Sequence[int],
    horizon: int,
    *,
    startable: NDArray[np.bool_] | None = None,
    stops: I64 | None = None,
    weights: F32 | None = None,
    sha256: str,
) -> Dataset:
    """
    Find where chunks start: where they may, inputs are known and a row is left to learn from.

    :param actions: shape (N, A)
    :param lengths: rows of each episode
    :param horizon: H
    :param startable: shape (N,), where chunks may start; by default everywhere
    :param stops: shape (N,), see :class:`Dataset`; by default the ends of the episodes
    :param weights: shape (N,), 0 and more; by default 1 each
    :raises InvalidDataError: nothing to learn from, or arrays that do not fit together
    """
    borders = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
    total = int(borders[-1])
    if stops is None:
        stops = np.repeat(borders[1:], np.diff(borders))
    weights = np.ones(total, np.float32) if weights is None else weights.astype(np.float32)
    startable = np.ones(total, bool) if startable is None else startable
    for name, array in (
        ('actions', actions),
        ('startable', startable),
        ('stops', stops),
        ('weights', weights),
    ):
        if len(array) != total:
            raise InvalidDataError(f'{name}: {len(array)} rows, the episodes have {total}')
    if not np.all(np.isfinite(weights)) or np.any(weights < 0.0):
        raise InvalidDataError('weights of rows must be finite and not below 0')
    data = Dataset(
        tuple(tables), actions, borders, np.arange(total), stops, weights, horizon, sha256
    )
    starts = data.starts[_learnable(data) & startable]
    if not len(starts):
        raise InvalidDataError(f'no row of {len(lengths)} episodes can be learned from')
    return replace(data, starts=starts)


def _learnable(data: Dataset) -> NDArray[np.bool_]:
    """Drop the weight of unknown actions; return which rows (N,) chunks may start at."""
    total = len(data.stops)
    known = np.zeros(total, bool)
    for at in range(0, total, BLOCK_ROWS):
        rows = np.arange(at, min(at + BLOCK_ROWS, total))
        known[rows] = np.isfinite(data.inputs(rows)).all(axis=1)
        finite = np.isfinite(np.asarray(data.actions[rows])).all(axis=1)
        data.weights[rows] = np.where(finite, data.weights[rows], 0.0)
    counted = np.concatenate(([0], np.cumsum(data.weights > 0.0)))
    first = np.arange(total)
    last = np.minimum(first + data.horizon, data.stops)
    learnable: NDArray[np.bool_] = known & (counted[last] > counted[first])
    return learnable


def from_episodes(episodes: Sequence[tuple[F32, F32, NDArray[np.bool_]]], horizon: int) -> Dataset:
    """
    Return the chunks of episodes in memory.

    :param episodes: of each, inputs (T, I), rows (T, A) and ``disturbed`` (T,): row t is what was
        right when input t was seen, and whether something else was done instead. A chunk is valid
        up to the first disturbed row: what came after answers what could not be foreseen.
    :raises InvalidDataError: no episodes, or numbers that are not finite
    """
    if not episodes:
        raise InvalidDataError('no episodes to train on')
    inputs, actions = (
        np.concatenate([episode[part] for episode in episodes]).astype(np.float32)
        for part in (0, 1)
    )
    if not (np.isfinite(inputs).all() and np.isfinite(actions).all()):
        raise InvalidDataError('demonstrations hold numbers that are not finite')
    lengths = [len(rows) for _, rows, _ in episodes]
    stops = np.concatenate([_foreseen(disturbed) for _, _, disturbed in episodes])
    stops += np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    digest = hashlib.sha256()
    for part in (inputs, actions, stops):
        digest.update(np.ascontiguousarray(part).tobytes())
    table = (inputs, range(inputs.shape[1]))
    return build([table], actions, lengths, horizon, stops=stops, sha256=digest.hexdigest())


def _foreseen(disturbed: NDArray[np.bool_]) -> I64:
    """Return, for each row (T,) of an episode, one past the first disturbed row from there on."""
    after = np.where(disturbed, np.arange(len(disturbed)) + 1, len(disturbed))
    foreseen: I64 = np.minimum.accumulate(after[::-1])[::-1].astype(np.int64)
    return foreseen
