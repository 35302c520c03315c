"""What can be wrong with one episode of training data; see :mod:`chunkpilot_core.bags.quality`."""

from collections.abc import Iterator, Sequence
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.bags.frames import Frames
from chunkpilot_core.types import ActionSpace, F64, Kind
import numpy as np
from numpy.typing import NDArray

B = NDArray[np.bool_]
Found = tuple[str, float, float, str, tuple[tuple[int, int], ...]]
"""Kind, value, limit, text, stretches of frames."""
AT_BOUND = 1e-3  # of the range of a column
MOVED_IN = 0.8  # a column that changes in so many episodes is expected to
LONG = 20  # frames of an episode in which something has to change
_RATES = (Kind.JOINT_VELOCITY, Kind.BASE_TWIST)


def columns_that_move(cache: Cache) -> B:
    """Return which state columns (S,) change in nearly all episodes that are not short."""
    changed = [
        np.ptp(cache.state[episode.rows], axis=0) > 0.0
        for episode in cache.episodes
        if episode.length >= LONG
    ]
    if len(changed) < 2:
        return np.zeros(len(cache.state_names), bool)
    often: B = np.mean(changed, axis=0) >= MOVED_IN
    return often


def checks(frames: Frames, moves: B, options: Any) -> Iterator[Found]:
    """
    Look through one episode.

    :param moves: which state columns (S,) are expected to change
    :param options: :class:`chunkpilot_core.bags.quality.QualityOptions`
    """
    moving = motion(frames, options.still)
    yield from _idle(frames, moving, options.idle_s)
    yield from _frozen(frames, moving, moves, options.frozen_s)
    at_bound = saturated(frames)
    yield from _duplicated(frames, moving, at_bound, options.duplicated)
    yield from _share('saturated', frames, at_bound, options.saturated, 'actions at their bound')
    known = np.isfinite(frames.inputs(frames.names))
    unknown = frames.valid & ~known.all(axis=1)
    yield from _share('unknown', frames, unknown, options.unknown, _unknown(frames.names, known))
    yield from _gaps(frames, options.gaps)


def motion(frames: Frames, still: float) -> B:
    """
    Return in which frames (T,) the action asks for motion.

    :param still: motion below this share of half a column's range is none
    """
    space = frames.space
    half = (np.array(space.upper) - np.array(space.lower)) / 2
    asked = np.abs(frames.actions - _standing(frames)) > still * half
    first = frames.actions[:1]
    change = np.abs(np.diff(frames.actions, axis=0, prepend=first)) > still * half
    moving: B = np.where(_relative(space), asked, change).any(axis=1) & frames.valid
    return moving


def _relative(space: ActionSpace) -> B:
    """Return which columns (A,) say a displacement or rate, instead of where to be."""
    mask = np.zeros(space.size, bool)
    for group in space.groups:
        mask[group.start : group.stop] = group.kind.relative or group.kind in _RATES
    return mask


def _standing(frames: Frames) -> F64:
    """Return the row (A,) of relative columns that asks for nothing."""
    row = np.zeros(frames.space.size)
    for group in frames.space.groups:
        row[group.start : group.stop] = -np.array(group.offset) / np.array(group.scale)
    return row


def saturated(frames: Frames) -> B:
    """Return in which frames (T,) a column that is motion is at its bound."""
    space = frames.space
    lower, upper = np.array(space.lower), np.array(space.upper)
    margin = AT_BOUND * (upper - lower)
    at_bound = (frames.actions >= upper - margin) | (frames.actions <= lower + margin)
    found: B = at_bound[:, spaces.motion_columns(space)].any(axis=1) & frames.valid
    return found


def runs(mask: B, shortest: int = 1) -> tuple[tuple[int, int], ...]:
    """Return the stretches [start, stop) of a mask (T,) that are long enough."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return tuple((start, stop) for start, stop in pairs if stop - start >= shortest)


def _idle(frames: Frames, moving: B, limit_s: float) -> Iterator[Found]:
    found = runs(frames.valid & ~moving, int(limit_s / frames.dt_s) + 1)
    if found:
        longest = max(stop - start for start, stop in found) * frames.dt_s
        yield 'idle', longest, limit_s, f'stands still for {longest:.1f} s', found


def _frozen(frames: Frames, moving: B, moves: B, limit_s: float) -> Iterator[Found]:
    state = frames.state
    same = np.zeros(len(frames), bool)
    if state.shape[1]:
        same[1:] = (state[1:] == state[:-1]).all(axis=1)
    found = tuple(
        (start, stop)
        for start, stop in runs(same & frames.valid, int(limit_s / frames.dt_s) + 1)
        if moving[start:stop].mean() >= 0.5
    )
    if found:
        longest = max(stop - start for start, stop in found) * frames.dt_s
        text = f'all of the state stays the same for {longest:.1f} s of motion'
        yield 'frozen', longest, limit_s, text, found
        return
    length_s = len(frames) * frames.dt_s
    if len(frames) < LONG or moving.mean() < 0.5 or length_s <= limit_s:
        return
    still = np.ptp(state, axis=0) == 0.0
    names = [name for i, name in enumerate(frames.state_names) if moves[i] and still[i]]
    if names:
        text = f'{", ".join(names)} never changed; elsewhere it does'
        yield 'frozen', length_s, limit_s, text, ((0, len(frames)),)


def _duplicated(frames: Frames, moving: B, at_bound: B, limit: float) -> Iterator[Found]:
    if not _relative(frames.space).any():
        return  # a target that stays is standing still
    repeated = np.zeros(len(frames), bool)
    repeated[1:] = (frames.actions[1:] == frames.actions[:-1]).all(axis=1)
    repeated &= moving & ~at_bound  # at full speed rows are alike
    share = float(repeated.sum() / max(moving.sum(), 1))
    if share > limit:
        text = f'{share:.0%} of moving frames repeat the action before'
        yield 'duplicated', share, limit, text, runs(repeated)


def _share(kind: str, frames: Frames, mask: B, limit: float, what: str) -> Iterator[Found]:
    share = float(mask.mean())
    if share > limit:
        yield kind, share, limit, f'{share:.0%} of frames: {what}', runs(mask)


def _unknown(names: Sequence[str], known: B) -> str:
    """Say which inputs are unknown somewhere; ``known`` (T, len(names))."""
    names = [name for i, name in enumerate(names) if not known[:, i].all()]
    more = f' and {len(names) - 5} more' if len(names) > 5 else ''
    return (
        f'{", ".join(names[:5])}{more} unknown: their messages begin late, end early or pause '
        '(imports: for longer than max_age_s)'
    )


def _gaps(frames: Frames, limit: float) -> Iterator[Found]:
    good = np.flatnonzero(frames.valid)
    if not len(good):
        yield 'gaps', 1.0, limit, 'no frame is valid', ((0, len(frames)),)
        return
    inside = np.zeros(len(frames), bool)
    inside[good[0] : good[-1]] = ~frames.valid[good[0] : good[-1]]
    yield from _share('gaps', frames, inside, limit, 'no rows, or an old observation')
