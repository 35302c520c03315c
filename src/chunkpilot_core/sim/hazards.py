"""Fixed things in a simulated world that nobody should touch, and who touched them."""

from collections.abc import Sequence
from typing import Any

from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape
import numpy as np


class Hazards:
    """Static bodies in one physics client."""

    def __init__(self, client: Any, obstacles: Sequence[Obstacle]) -> None:
        """Put them into the world."""
        self._client = client
        self._bodies = {_make(client, obstacle): obstacle.name for obstacle in obstacles}

    def touched(self, bodies: Sequence[int]) -> set[str]:
        """Return the names of those that one of the bodies, by PyBullet's number, touches now."""
        found = set()
        for hazard, name in self._bodies.items():
            for body in bodies:
                contacts = self._client.getContactPoints(body, hazard)
                if any(contact[8] <= 0.0 for contact in contacts):
                    found.add(name)
        return found


def _make(client: Any, obstacle: Obstacle) -> int:
    size = obstacle.size
    if obstacle.shape is Shape.BOX:
        half = [edge / 2.0 for edge in size]
        shape = client.createCollisionShape(client.GEOM_BOX, halfExtents=half)
    elif obstacle.shape is Shape.SPHERE:
        shape = client.createCollisionShape(client.GEOM_SPHERE, radius=size[0])
    else:
        shape = client.createCollisionShape(client.GEOM_CAPSULE, radius=size[0], height=size[1])
    place = np.asarray(obstacle.position, float).tolist()
    turn = np.asarray(obstacle.orientation, float).tolist()
    return int(client.createMultiBody(0.0, shape, -1, place, turn))
