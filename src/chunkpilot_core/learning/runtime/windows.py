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
from chunkpilot_core.sent_path import SentPath, SLACK_NS
from chunkpilot_core.types import F32, nanoseconds, PolicySpec, RowSource
import numpy as np
from numpy.typing import NDArray


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
    path = _path(episode, spec, sources)
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


def _path(episode: Episode, spec: PolicySpec, sources: Collection[RowSource]) -> SentPath:
    """Return the path between the ends of rows; good where rows join and are of ``sources``."""
    good = np.isin(episode.sources, [int(source) for source in sources])
    good[1:] &= episode.starts_ns[1:] <= episode.ends_ns[:-1] + SLACK_NS
    return SentPath(spec.space, episode.ends_ns, episode.targets, good)
