"""Recorded episodes as training data: which of them, whose rows, how much each counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
import fnmatch
import hashlib
from typing import Any

from chunkpilot_core.bags.cache import Cache, CachedEpisode
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, InvalidDataError, UnknownNameError
from chunkpilot_core.policies.runtime import dataset, recipe
from chunkpilot_core.policies.runtime.dataset import I64, Table
from chunkpilot_core.policies.runtime.recipe import Material
from chunkpilot_core.types import F32, RowSource
import numpy as np
from numpy.typing import NDArray

SOURCES = tuple(source.name.lower() for source in RowSource)


@dataclass(frozen=True)
class Selection:
    """What of recorded episodes is learned."""

    outcomes: str = option(
        'success', 'Which episodes: those that succeeded, or all.', choices=('success', 'all')
    )
    task: str = option('', "Kind of task; '' = there is only one.")
    sources: tuple[str, ...] = option(
        ('policy', 'residual', 'human'), 'Whose rows are learned.', choices=SOURCES
    )
    source_weights: tuple[float, ...] = option(
        (), 'How much the rows of each source count; none given = 1 each.', min=0.0, max=1e6
    )
    inputs: tuple[str, ...] = option(
        (), "Names of inputs, '*' is any text; none given = tool, gripper, objects and goal."
    )

    def __post_init__(self) -> None:
        if self.source_weights and len(self.source_weights) != len(self.sources):
            raise ConfigError(
                f'{len(self.source_weights)} source_weights for {len(self.sources)} sources'
            )

    @property
    def by_source(self) -> Mapping[RowSource, float]:
        """Weight of the rows of each source."""
        weights = self.source_weights or (1.0,) * len(self.sources)
        return {
            RowSource[name.upper()]: weight
            for name, weight in zip(self.sources, weights, strict=True)
        }


def material(
    cache: Cache,
    horizon: int,
    selection: Selection | None = None,
    *,
    weights: F32 | None = None,
    left_out: NDArray[np.bool_] | None = None,
) -> Material:
    """
    Return what is learned of recorded episodes; their frames stay on the disk.

    A chunk ends before the first row of a disturbance: what follows answers what could not be
    foreseen. Rows that are not valid, of other sources or without weight are masked out.

    :param horizon: H, rows of a chunk
    :param weights: shape (N,) for the N frames of the cache, 0 and more, e.g. from advantages: how
        much each row counts beside its source
    :param left_out: shape (N,), frames that are neither learned nor started from
    :raises ConfigError: no episode is chosen, or a task has to be
    :raises InvalidDataError: weights that do not fit the frames
    """
    selection = selection or Selection()
    task, chosen = _choose(cache.episodes, selection)
    names = _input_names(cache.names, selection.inputs)
    startable = np.array(cache.valid)
    counts = _row_weights(cache, selection, chosen)
    if left_out is not None:
        startable &= ~_fitting('left_out', left_out, cache)
        counts[left_out] = 0.0
    if weights is not None:
        counts = counts * _fitting('weights', weights, cache)
    data = dataset.build(
        _tables(cache, names),
        cache.actions,
        [episode.length for episode in cache.episodes],
        horizon,
        startable=startable,
        stops=_stops(cache),
        weights=counts.astype(np.float32),
        sha256=cache.sha256,
    )
    keys = tuple(episode.sha256 for episode in cache.episodes)
    used = data.episodes()
    source = {
        'bags': {cache.episodes[i].bag: keys[i] for i in used},
        'cache_sha256': cache.sha256,
        'selection': asdict(selection),
        'frames': asdict(cache.options),
        'rows': len(cache),
        'rows_learned': int(np.count_nonzero(data.weights)),
        'rows_left_out': 0 if left_out is None else int(np.count_nonzero(left_out)),
        'weights_sha256': '' if weights is None else hashlib.sha256(weights.tobytes()).hexdigest(),
    }
    return Material(names, data, keys, cache.space, cache.dt_s, task, source)


def _choose(
    episodes: Sequence[CachedEpisode], selection: Selection
) -> tuple[str, list[CachedEpisode]]:
    """Return the kind of task, and the episodes that are learned."""
    kinds = Counter(episode.task_kind for episode in episodes)
    if selection.task and selection.task not in kinds:
        raise UnknownNameError('task in the bags', selection.task, kinds)
    task = selection.task or next(iter(kinds))
    if len(kinds) > 1 and not selection.task:
        found = ', '.join(f'{kind or "(none)"} {count}' for kind, count in kinds.most_common())
        raise ConfigError(f'the bags have episodes of several tasks, choose one: {found}')
    chosen = [
        episode
        for episode in episodes
        if episode.task_kind == task and (episode.success or selection.outcomes == 'all')
    ]
    if len(chosen) < 2:
        ends = Counter(e.outcome.name.lower() for e in episodes if e.task_kind == task)
        found = ', '.join(f'{name} {count}' for name, count in ends.most_common())
        raise ConfigError(
            f'{len(chosen)} of {len(episodes)} episodes are chosen, need 2; outcomes: {found}'
        )
    return task, chosen


def _input_names(known: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    if not patterns:
        names = recipe.input_names(known)
        if not names:
            raise ConfigError(f'choose inputs, none is usual; recorded: {", ".join(known)}')
        return names
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise UnknownNameError('input', pattern, known)
    return tuple(name for name in known if any(fnmatch.fnmatchcase(name, p) for p in patterns))


def _row_weights(cache: Cache, selection: Selection, chosen: Sequence[CachedEpisode]) -> F32:
    """Return how much each frame (N,) counts."""
    of_source = np.zeros(256, np.float32)
    for source, weight in selection.by_source.items():
        of_source[source] = weight
    counts: F32 = of_source[cache.source] * cache.valid
    kept = np.zeros(len(cache), bool)
    for episode in chosen:
        kept[episode.rows] = True
    counts[~kept] = 0.0
    return counts


def _stops(cache: Cache) -> I64:
    """Return, for each frame (N,), the first one of a disturbance from there on, or the end."""
    stops = np.empty(len(cache), np.int64)
    disturbed = cache.source == RowSource.DISTURBED
    for episode in cache.episodes:
        index = np.arange(episode.start, episode.stop)
        first = np.where(disturbed[episode.rows], index, episode.stop)
        stops[episode.rows] = np.minimum.accumulate(first[::-1])[::-1]
    return stops


def _tables(cache: Cache, names: Sequence[str]) -> list[Table]:
    """Return arrays and columns that give the named inputs in the order of their names."""
    tables: list[Table] = []
    for known, array in (
        (cache.state_names, cache.state),
        (cache.feature_names, cache.features),
        (cache.goal_names, cache.goal),
    ):
        columns = [i for i, name in enumerate(known) if name in names]
        if columns:
            tables.append((array, columns))
    return tables


def _fitting(name: str, array: NDArray[Any], cache: Cache) -> NDArray[Any]:
    if array.shape != (len(cache),):
        raise InvalidDataError(
            f'{name}: shape {array.shape}, must be ({len(cache)},): one for each frame'
        )
    return array
