"""
Training examples of an episode: an input and the H rows that were really sent from its time on.

Rows of successive chunks lie on grids of different phase, and a replaced chunk ends inside a row.
So the path of sent targets is sampled anew on the grid of each observation, as a policy's answer
to that observation would be, and mapped back into rows.
"""

from collections.abc import Collection
from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.learning.runtime.episodes import Episode
from chunkpilot_core.types import F32, F64, nanoseconds, PolicySpec, RowSource
import numpy as np
from numpy.typing import NDArray

SLACK_NS = 2_000_000  # [ns] rows whose borders lie this close belong together


@dataclass(frozen=True, slots=True)
class Windows:
    """B examples: ``inputs`` (B, I), ``rows`` (B, H, A), ``valid`` (B, H) where to learn from."""

    inputs: F32
    rows: F32
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.inputs)


def windows(episode: Episode, spec: PolicySpec, sources: Collection[RowSource]) -> Windows:
    """
    Cut an episode into examples, one per row period.

    The input is an observation as it was at its stamp; only rows after it are looked at. Inputs
    with unknown numbers, and those before the first row was sent, are left out: a robot that
    waits for its first chunk is nothing to imitate.

    :param sources: whose rows are learned from; the others are in ``rows`` but not ``valid``
    """
    dt_ns = nanoseconds(spec.dt_s)
    path = _Path(episode, spec, sources)
    inputs, rows, valid = [], [], []
    due_ns = 0
    for stamp_ns, values in zip(episode.input_ns.tolist(), episode.inputs, strict=True):
        if stamp_ns < due_ns or not np.all(np.isfinite(values)) or not path.covers(stamp_ns):
            continue
        grid = stamp_ns + dt_ns * np.arange(spec.horizon + 1)
        good = path.allowed(grid)
        if not good.any():
            continue
        targets = path.at(grid)
        inputs.append(values)
        rows.append(spaces.to_rows(spec.space, targets[1:], targets[0]))
        valid.append(good)
        due_ns = stamp_ns + dt_ns - SLACK_NS
    size, horizon = spec.space.size, spec.horizon
    return Windows(
        np.array(inputs, np.float32).reshape(-1, len(spec.input_names)),
        _clip(np.array(rows, np.float32).reshape(-1, horizon, size), spec),
        np.array(valid, bool).reshape(-1, horizon),
    )


def _clip(rows: F32, spec: PolicySpec) -> F32:
    # The resampled path can cut a corner by a rounding error more than a row may ask for.
    clipped: F32 = np.clip(rows, spec.space.lower, spec.space.upper).astype(np.float32)
    return clipped


class _Path:
    """The sent targets over time: straight lines between the ends of rows."""

    def __init__(self, episode: Episode, spec: PolicySpec, sources: Collection[RowSource]) -> None:
        self._space = spec.space
        self._ends = episode.ends_ns
        self._targets = episode.targets
        allowed = np.isin(episode.sources, [int(source) for source in sources])
        joined = np.zeros(len(self._ends), bool)
        joined[1:] = episode.starts_ns[1:] <= self._ends[:-1] + SLACK_NS
        self._good = allowed & joined  # of the stretch that ends with each row

    def covers(self, stamp_ns: int) -> bool:
        """Whether targets before and after ``stamp_ns`` are known."""
        return bool(len(self._ends) > 1 and self._ends[0] <= stamp_ns < self._ends[-1])

    def allowed(self, grid: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each of the H stretches of a grid (H + 1,), whether all of it is good."""
        first = np.searchsorted(self._ends, grid[:-1], side='right')
        last = np.searchsorted(self._ends, grid[1:], side='left')
        inside = last < len(self._ends)
        bad = np.concatenate(([0], np.cumsum(~self._good)))
        last = np.minimum(last, len(self._ends) - 1)
        clean: NDArray[np.bool_] = inside & (bad[last + 1] - bad[first] == 0)
        return clean

    def at(self, grid: NDArray[np.int64]) -> F64:
        """Return the targets (H + 1, T) at the grid's times; the last one is held."""
        after = np.clip(np.searchsorted(self._ends, grid, side='left'), 1, len(self._ends) - 1)
        out = np.empty((len(grid), self._space.target_size))
        for i, (stamp_ns, k) in enumerate(zip(grid.tolist(), after.tolist(), strict=True)):
            span = self._ends[k] - self._ends[k - 1]
            fraction = min(max((stamp_ns - self._ends[k - 1]) / span, 0.0), 1.0)
            before, reached = self._targets[k - 1], self._targets[k]
            out[i] = spaces.interpolate(self._space, before, reached, fraction)
        return out
