"""The chunks of recorded episodes as a strategy met them: with the row in force before each."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from chunkpilot_core.bags import episodes
from chunkpilot_core.errors import BagError
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.types import ActionChunk, F32, PolicySpec
import numpy as np


def recorded(
    paths: Sequence[Path], spec: PolicySpec
) -> Iterator[tuple[ActionChunk, ExecutionState]]:
    """
    Iterate over what a policy answered in recorded episodes, any version of it.

    :param paths: bags, one episode each
    :raises BagError: a bag can't be read, or none has a chunk of this policy and action space
    """
    found, others = 0, set()
    for path in paths:
        episode = episodes.load(path)
        for chunk in episode.chunks:
            kind = episode.task.kind if episode.task else ''
            if not _by(spec, chunk, kind):
                others.add(f'{chunk.policy!r} with {chunk.horizon} rows, task {kind!r}')
                continue
            chunk.validate(spec.space)
            found += 1
            row = _row_before(episode, chunk.start_ns, spec.space.size)
            yield chunk, ExecutionState(chunk.start_ns, row, 0, 0.0, 0.0)
    if not found:
        raise BagError(
            f'{len(paths)} bags have no chunk of {spec.policy!r} with {spec.horizon} rows in its '
            f'action space, task {spec.task_kind!r}; they have: '
            f'{", ".join(sorted(others)) or "none at all"}'
        )


def _by(spec: PolicySpec, chunk: ActionChunk, task_kind: str) -> bool:
    same = (chunk.policy, chunk.space_hash, chunk.horizon) == (
        spec.policy,
        spec.space.hash,
        spec.horizon,
    )
    return same and task_kind in (spec.task_kind or task_kind, '')


def _row_before(episode: episodes.Episode, at_ns: int, size: int) -> F32:
    """Return the row (A,) that was executed last before a time; zeros before the first."""
    last: F32 = np.zeros(size, np.float32)
    for batch in episode.rows:
        ended = np.searchsorted(np.array(batch.stamps_ns), at_ns, side='right')
        if ended:
            last = batch.rows[ended - 1]
    return last
