"""A chunk that arrives in parts: later rows, and better ones in place of coarse ones."""

from dataclasses import dataclass, replace
from typing import Any

from chunkpilot_core.types import ActionChunk, ChunkPart, seconds
import numpy as np
from numpy.typing import NDArray

SAME_NS = 1_000_000  # starts of one chunk that went through float seconds
BY_ROW = ('actions', 'expected_features', 'confidence', 'waypoint', 'residual')


@dataclass(frozen=True, slots=True)
class _Table:
    """Of each row (H,): its revision, -1 = none; whether it may run; its observation's stamp."""

    revision: NDArray[np.int64]
    ready: NDArray[np.bool_]
    stamp_ns: NDArray[np.int64]


def revised(old: ActionChunk, new: ActionChunk, next_row: int) -> ActionChunk | str:
    """
    Return a chunk with what a later message about it says, or why nothing of that counts.

    It keeps its id; the stamp of its observation is the oldest that rows to come rest on.

    :param new: valid, with at least one part; rows outside of its parts mean nothing
    :param next_row: the first that has not started
    """
    if abs(new.start_ns - old.start_ns) > SAME_NS:
        return f'it starts {seconds(new.start_ns - old.start_ns):.3f} s after its first part'
    before, now = _table(old), _table(new)
    better = now.revision > before.revision
    if not np.any(better | (now.ready & ~before.ready)):
        return (
            f'nothing in it is new: rows of revision {now.revision.max()}, '
            f'known are {before.revision.max()}'
        )
    changes: dict[str, Any] = {
        name: _mixed(getattr(old, name), getattr(new, name), better) for name in BY_ROW
    }
    if new.residual is None:  # what is kept of the old one's stays within its bound
        changes['residual_bound'] = old.residual_bound
    parts = [part for part in old.parts if np.any(now.revision[_span(part)] < part.revision)]
    parts += [part for part in new.parts if np.any(part.revision >= before.revision[_span(part)])]
    changed = replace(new, id=old.id, start_ns=old.start_ns, parts=tuple(parts))
    table = _table(changed)
    coming = table.stamp_ns[next_row:][table.revision[next_row:] >= 0]
    stamp_ns = int(coming.min()) if len(coming) else new.observation_stamp_ns
    return replace(changed, observation_stamp_ns=stamp_ns, **changes)


def _mixed(old: Any, new: Any, better: NDArray[np.bool_]) -> Any:
    if new is None or old is None or old.shape != new.shape:
        return old if new is None else new
    return np.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _span(part: ChunkPart) -> slice:
    return slice(part.first_row, part.first_row + part.n_rows)


def _table(chunk: ActionChunk) -> _Table:
    rows = chunk.horizon
    table = _Table(
        np.full(rows, -1), np.zeros(rows, bool), np.full(rows, chunk.observation_stamp_ns)
    )
    for part in sorted(chunk.parts, key=lambda part: part.revision):
        span = _span(part)
        table.revision[span] = part.revision
        table.stamp_ns[span] = part.observation_stamp_ns or chunk.observation_stamp_ns
        table.ready[part.first_row : part.first_row + part.executable_rows] = True
    return table
