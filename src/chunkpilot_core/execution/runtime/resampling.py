"""
What a chunk says for times between its rows, so that chunks of different grids can be compared.

A chunk begins at its observation's stamp, which is anywhere within a row of another chunk. The
nearest row alone would be up to half a row ahead or behind, always the same way: absolute rows
would lead or lag by that, and a mean of chunks with them. Displacements over a time that two rows
share are shared in the same proportion.
"""

from chunkpilot_core import spaces
from chunkpilot_core.types import ActionSpace, F32, F64, Rotation
import numpy as np


class Resampler:
    """Rows of one space at places between rows."""

    def __init__(self, space: ActionSpace) -> None:
        self._stepped = np.flatnonzero(~spaces.motion_columns(space))
        self._quaternions = [
            slice(group.start + 3, group.stop)
            for group in space.groups
            if group.rotation is Rotation.QUATERNION
        ]

    def __call__(self, actions: F32, first: float, count: int) -> F32:
        """
        Return ``count`` rows of a chunk, the first of them at a place, shape (count, A).

        NaN where the nearest row is none of the chunk's; grippers are those of the nearest row.

        :param actions: shape (H, A)
        :param first: in rows of the chunk, e.g. 2.25 = a quarter of a row after row 2 begins
        """
        place = np.round(first, 6) + np.arange(count)
        last = len(actions) - 1
        nearest = np.floor(place + 0.5).astype(int)
        before = np.clip(np.floor(place).astype(int), 0, last)
        fraction = np.clip(place - before, 0.0, 1.0)[:, None]
        rows = self._mixed(actions[before], actions[np.minimum(before + 1, last)], fraction)
        rows[:, self._stepped] = actions[np.clip(nearest, 0, last)][:, self._stepped]
        rows[(nearest < 0) | (nearest > last)] = np.nan
        return rows.astype(np.float32)

    def _mixed(self, before: F32, after: F32, fraction: F64) -> F64:
        after = after.copy()
        for part in self._quaternions:  # q and -q are the same orientation
            flips = np.einsum('ij,ij->i', before[:, part], after[:, part]) < 0.0
            after[flips, part] *= -1.0
        rows: F64 = (1.0 - fraction) * before + fraction * after
        for part in self._quaternions:
            rows[:, part] /= np.maximum(np.linalg.norm(rows[:, part], axis=1), 1e-9)[:, None]
        return rows
