"""
Episodes that act otherwise than others where the observation is the same.

Each frame is compared with its nearest frames of other episodes; only the better half counts,
where neighbours are near. Numbers are in standard deviations, so that units do not matter.
"""

from chunkpilot_core import spaces
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.types import F32
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

LOOK_S = 0.2  # actions are means over so long: single rows are noisy
BLOCK = 256  # frames compared at a time
INPUTS = 0.15  # weight of an input beside what a linear fit makes of all of them
RIDGE = 1e-3
LEAST = 5  # frames of an episode that must have near neighbours
LEAST_SHARE = 0.2  # of them
OUTLIER = 6.0  # median absolute deviations above the median of all episodes


def scores(
    cache: Cache, neighbours: int, most_frames: int, limit: float
) -> tuple[dict[int, float], float]:
    """
    Return how far each episode's actions are from those of its neighbours, and the limit.

    :param neighbours: nearest frames of other episodes that are asked
    :param most_frames: frames that are compared, evenly taken of all
    :param limit: least mean distance of a finding; the limit returned is higher where all
        episodes disagree, for then none is to blame
    :returns: score by number of episode, of those that could be compared
    """
    rows, owner, inputs = _sample(cache, most_frames)
    inputs = _standard(inputs)
    if len(np.unique(owner)) < 2 or not inputs.shape[1]:
        return {}, limit
    actions = _scaled(_means(cache, rows, owner), spaces.motion_columns(cache.space))
    distance, difference = _compare(_weighted(inputs, actions), actions, owner, neighbours)
    finite = np.isfinite(distance)
    if not finite.any():
        return {}, limit
    near = finite & (distance <= np.median(distance[finite]))
    found = {}
    for number in np.unique(owner).tolist():
        own = owner == number
        mine = near & own
        if mine.sum() >= max(LEAST, LEAST_SHARE * own.sum()):
            found[int(number)] = float(np.sqrt((difference[mine] ** 2).mean()))
    values = np.array(list(found.values()))
    if len(values):
        middle = np.median(values)
        spread = np.median(np.abs(values - middle))
        limit = max(limit, float(middle + OUTLIER * spread))
    return found, limit


def _sample(cache: Cache, most: int) -> tuple[I64, I64, F32]:
    """Return rows of valid frames, the episode of each, and inputs (N, I) that are all known."""
    step = max(1, -(-len(cache) // most))
    rows = np.arange(0, len(cache), step)
    rows = rows[cache.valid[rows]]
    starts = np.array([episode.start for episode in cache.episodes])
    owner = np.searchsorted(starts, rows, side='right') - 1
    inputs = np.concatenate([cache.state[rows], cache.features[rows], cache.goal[rows]], axis=1)
    usual = np.isfinite(inputs).mean(axis=0) > 0.5 if len(rows) else np.zeros(0, bool)
    # ages say when a camera looked, not what is there
    usual &= [not name.endswith('.age') for name in cache.names][: len(usual)]
    inputs = inputs[:, usual]
    known = np.isfinite(inputs).all(axis=1)
    return rows[known], owner[known], inputs[known]


def _means(cache: Cache, rows: I64, owner: I64) -> F32:
    """Return the mean action (N, A) from each row on, inside of its episode."""
    look = max(1, round(LOOK_S / cache.dt_s))
    ends = np.array([episode.stop for episode in cache.episodes])[owner]
    ahead = np.minimum(rows[:, None] + np.arange(look), ends[:, None] - 1)
    means: F32 = np.asarray(cache.actions)[ahead].mean(axis=1)
    return means


def _standard(values: F32) -> F32:
    """Return columns (N, C) that vary, with mean 0 and standard deviation 1."""
    spread = values.std(axis=0) if len(values) else np.zeros(values.shape[1])
    varies = spread > 1e-6
    scaled: F32 = (values[:, varies] - values[:, varies].mean(axis=0)) / spread[varies]
    return scaled.astype(np.float32)


def _scaled(actions: F32, motion: NDArray[np.bool_]) -> F32:
    """
    Return actions (N, A) in standard deviations, of motion in those of all its columns together.

    A column that only trembles would count as much as those that move, if each had its own.
    """
    spread = actions.std(axis=0) if len(actions) else np.zeros(actions.shape[1])
    if motion.any():
        spread = np.where(motion, np.sqrt((spread[motion] ** 2).mean()), spread)
    scaled: F32 = (actions - actions.mean(axis=0)) / np.maximum(spread, 1e-6)
    return scaled.astype(np.float32)


def _weighted(inputs: F32, actions: F32) -> F32:
    """
    Return the space in which frames are compared, (N, A + I).

    Where two frames differ in what actions depend on, they differ: so what a linear fit says of
    the actions counts in full, and all inputs a little.
    """
    wide = np.concatenate((inputs, np.ones((len(inputs), 1), np.float32)), axis=1)
    square = wide.T @ wide + RIDGE * len(wide) * np.eye(wide.shape[1], dtype=np.float32)
    fitted = _standard(wide @ np.linalg.solve(square, wide.T @ actions).astype(np.float32))
    return np.concatenate((fitted, INPUTS * inputs), axis=1)


def _compare(inputs: F32, actions: F32, owner: I64, neighbours: int) -> tuple[F32, F32]:
    """
    Return, for each frame, how far its neighbours in other episodes are, and their actions.

    :returns: distances (N,), infinite where there are not enough; root mean square difference of
        the action from the median of the neighbours' (N,), less how they differ from it
    """
    count = len(inputs)
    distance = np.full(count, np.inf, np.float32)
    difference = np.zeros(count, np.float32)
    squares = (inputs**2).sum(axis=1)
    for start in range(0, count, BLOCK):
        block = slice(start, min(start + BLOCK, count))
        apart = squares[block, None] + squares - 2.0 * (inputs[block] @ inputs.T)
        apart[owner[block, None] == owner] = np.inf
        nearest = np.argpartition(apart, min(neighbours, count) - 1, axis=1)[:, :neighbours]
        furthest = np.take_along_axis(apart, nearest, axis=1).max(axis=1)
        distance[block] = np.sqrt(np.maximum(furthest, 0.0))
        usual = np.median(actions[nearest], axis=1)
        own = np.sqrt(((actions[block] - usual) ** 2).mean(axis=1))
        theirs = np.sqrt(((actions[nearest] - usual[:, None]) ** 2).mean(axis=(1, 2)))
        difference[block] = np.maximum(own - theirs, 0.0)
    return distance, difference
