"""
Other rows than a chunk's own, by number: the samples that came with it, then detours.

A detour is the chunk's path with a smooth displacement added: over what is in the way, beside it,
or back from it. Nobody has to have predicted it; a policy that looks where the arm is goes on from
there. Whoever knows the chunk gets the same rows for the same number, so that a verdict only has
to name it.
"""

from collections.abc import Iterator

from chunkpilot_core.types import ActionChunk, ActionGroup, ActionSpace, F32, F64, Kind
import numpy as np

Way = tuple[float, float, float]
"""Ahead, left and up of where the chunk leads in the horizontal plane."""
UP, LEFT, RIGHT, BACK = (0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (0.0, -1.0, 0.0), (-0.7, 0.0, 0.7)
UP_LEFT, UP_RIGHT = (0.0, 0.7, 0.7), (0.0, -0.7, 0.7)
DETOURS: tuple[tuple[float, bool, Way, float], ...] = (
    (1.0, True, UP, 0.0),
    *((1.0, False, way, 0.04) for way in (UP, LEFT, RIGHT)),
    *((1.0, True, UP, length) for length in (0.04, 0.08)),
    *((1.0, False, way, 0.08) for way in (LEFT, RIGHT)),
    *((0.5, True, way, 0.08) for way in (UP, LEFT, RIGHT)),
    *((0.0, True, way, 0.08) for way in (UP, UP_LEFT, UP_RIGHT, LEFT, RIGHT, BACK)),
    *((0.0, True, way, 0.03) for way in (UP, LEFT, RIGHT, BACK)),
)
"""
Share of the chunk's own motion, whether it goes on level instead of down, way and length [m] of
the displacement; those that keep most of the chunk come first.
"""
STILL_M = 0.01  # a chunk that leads less far has no direction
GRIP = 0.2  # of a gripper's range in row units: less is no closing


def numbers(chunk: ActionChunk, space: ActionSpace, samples: int, detours: bool) -> Iterator[int]:
    """
    Yield the candidates that there are, those the policy has predicted first.

    :param samples: at most so many of these
    """
    if chunk.samples is not None:
        yield from range(min(len(chunk.samples), samples))
    if detours and _arm(space) is not None:
        begin = _samples(chunk)
        yield from range(begin, begin + len(DETOURS))


def is_detour(chunk: ActionChunk, number: int) -> bool:
    """Whether a candidate is none of the policy's samples."""
    return number >= _samples(chunk)


def side(chunk: ActionChunk, number: int) -> float:
    """Return how far a candidate goes to the left of the chunk's own way, 1 to -1."""
    return DETOURS[number - _samples(chunk)][2][1] if is_detour(chunk, number) else 0.0


def rows_of(chunk: ActionChunk, space: ActionSpace, number: int) -> F32 | None:
    """
    Return the rows (H, A) of a candidate in the policy's units, None if there is none.

    :param number: from 0; detours come after all samples of the chunk
    """
    arm, detour = _arm(space), number - _samples(chunk)
    if number < 0 or detour >= len(DETOURS) or (detour >= 0 and arm is None):
        return None
    if detour < 0 or arm is None:
        samples = chunk.samples
        assert samples is not None
        rows: F32 = samples[number]
        return rows if rows.shape == chunk.actions.shape and np.isfinite(rows).all() else None
    return _detour(chunk, space, arm, *DETOURS[detour])


def _detour(
    chunk: ActionChunk,
    space: ActionSpace,
    arm: ActionGroup,
    share: float,
    level: bool,
    way: Way,
    length_m: float,
) -> F32:
    """
    Return the rows of a chunk displaced.

    Where the gripper closes the detour begins when it has closed; it never opens on the way.
    """
    rows, began = chunk.actions.copy(), 0
    for group in space.groups:
        if group.kind is Kind.GRIPPER:
            columns = slice(group.start, group.stop)
            opens = np.sign(np.array(group.scale or (1.0,), np.float32))  # in row units
            grip = np.minimum.accumulate(rows[:, columns] * opens, axis=0)
            rows[:, columns] = grip * opens
            closing = np.flatnonzero((grip > grip[-1] + GRIP).any(axis=1))
            began = max(began, int(closing[-1]) + 1 if len(closing) else 0)
    place, count = slice(arm.start, arm.start + 3), chunk.horizon - began
    scale = np.array(arm.scale[:3] or (1.0, 1.0, 1.0))
    offset = np.array(arm.offset[:3] or (0.0, 0.0, 0.0))
    moved: F64 = chunk.actions[began:, place] * scale + offset
    pace = np.sin(np.pi * (np.arange(count) + 0.5) / count) * (np.pi / 2.0 / chunk.horizon)
    turned = _frame(moved) @ np.array(way)
    if level:
        moved[:, 2] = np.maximum(moved[:, 2], 0.0)
    moved = share * moved + length_m * pace[:, None] * turned
    rows[began:, place] = (moved - offset) / scale
    lower, upper = np.array(space.lower), np.array(space.upper)
    bounded: F32 = np.clip(rows, lower, upper).astype(np.float32)
    return bounded


def _frame(moved: F64) -> F64:
    """Return the axes ahead, left and up of a motion (H, 3) as columns."""
    ahead = moved.sum(axis=0)[:2]
    length = float(np.linalg.norm(ahead))
    x, y = ahead / length if length > STILL_M else np.array([1.0, 0.0])
    return np.array([[x, -y, 0.0], [y, x, 0.0], [0.0, 0.0, 1.0]])


def _samples(chunk: ActionChunk) -> int:
    return 0 if chunk.samples is None else len(chunk.samples)


def _arm(space: ActionSpace) -> ActionGroup | None:
    """Return the columns that displace the tool; only of those a detour can be made."""
    found = (group for group in space.groups if group.kind is Kind.EE_DELTA)
    return next(found, None)
