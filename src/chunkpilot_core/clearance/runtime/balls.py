"""Balls around everything: which pairs are near enough to be looked at more closely."""

from collections.abc import Sequence

from chunkpilot_core import rotations
from chunkpilot_core.clearance.runtime.bodies import Frames, Obstacle, Shape, transform
from chunkpilot_core.clearance.runtime.levers import EXTRA
from chunkpilot_core.collision import Collision
from chunkpilot_core.types import F64
import numpy as np


class Balls:
    """One ball per body and obstacle; boxes in the world stay boxes."""

    def __init__(
        self,
        frames: Frames,
        collision: Collision,
        surroundings: Sequence[Obstacle],
        pairs: Sequence[tuple[str, str]],
    ) -> None:
        """Put a ball around each body, and prepare the comparison of P pairs."""
        middles, radii, where, names = [], [], [], []
        for body in collision.bodies:
            mount = transform(body.xyz, body.rpy)
            ends = np.array([end for c in body.capsules for end in (c.start, c.end)])
            thick = np.array([c.radius for c in body.capsules for _ in range(2)])
            middle = (ends.min(axis=0) + ends.max(axis=0)) / 2.0
            radius = float((np.linalg.norm(ends - middle, axis=1) + thick).max()) + EXTRA
            middles.append([*(mount[:3, :3] @ middle + mount[:3, 3]), 1.0])
            radii.append(radius)
            where.append(frames.index[body.frame])
            names.append(body.name)
        boxes = {}
        for other in surroundings:
            if other.shape is Shape.BOX and not other.held:
                boxes[other.name] = other
            names.append(other.name)
            middles.append([*other.position, 1.0])
            radii.append(_radius(other))
            where.append(frames.index[other.frame])
        self._middles, self._where = np.array(middles)[..., None], np.array(where)
        index = {name: i for i, name in enumerate(names)}
        self._first = np.array([index[first] for first, _ in pairs], np.intp)
        self._second = np.array([index[second] for _, second in pairs], np.intp)
        self._radii = np.array(radii)
        self._apart = self._radii[self._first] + self._radii[self._second]
        self._boxed = np.array([i for i, (_, o) in enumerate(pairs) if o in boxes], np.intp)
        looked_at = [boxes[pairs[i][1]] for i in self._boxed]
        self._half = np.array([box.size for box in looked_at]).reshape(-1, 3) / 2.0
        self._place = np.array([box.position for box in looked_at]).reshape(-1, 3)
        turns = [rotations.from_quaternion(np.asarray(box.orientation)) for box in looked_at]
        self._turn = np.array(turns).reshape(-1, 3, 3)

    def at_least(self, frames: F64) -> F64:
        """Return what the pairs are apart at least, shape (N, P) [m], from all frames."""
        middles = (frames[:, self._where, :3] @ self._middles)[..., 0]
        first = middles[:, self._first]
        gap = first - middles[:, self._second]
        least: F64 = np.sqrt(np.einsum('npi,npi->np', gap, gap)) - self._apart
        if len(self._boxed):
            inside = (first[:, self._boxed] - self._place)[:, :, None] @ self._turn
            out = np.maximum(np.abs(inside[:, :, 0]) - self._half, 0.0)
            radii = self._radii[self._first[self._boxed]]
            least[:, self._boxed] = np.sqrt(np.einsum('npi,npi->np', out, out)) - radii
        return least


def _radius(obstacle: Obstacle) -> float:
    if obstacle.shape is Shape.BOX:
        return float(np.linalg.norm(obstacle.size)) / 2.0
    return obstacle.size[0] + (obstacle.size[1] / 2.0 if obstacle.shape is Shape.CAPSULE else 0.0)
