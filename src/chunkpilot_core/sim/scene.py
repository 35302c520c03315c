"""
Ground truth of the simulator: for rendering, scoring and scripted experts, never for policies.
"""

from dataclasses import dataclass

from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.types import F64
import numpy as np


@dataclass(frozen=True, slots=True)
class Scene:
    """
    Where everything is at ``stamp_ns``; see SimScene.msg.

    ``joint_positions`` (J,) [rad, m]; ``positions`` (O, 3) [m] and ``orientations`` (O, 4) xyzw of
    ``bodies`` (O,); ``goal`` (G,) [m].
    """

    stamp_ns: int
    joint_names: tuple[str, ...]
    joint_positions: F64
    bodies: tuple[str, ...]
    positions: F64
    orientations: F64
    goal: F64
    success: bool
    seed: int
    task_kind: str

    def position(self, body: str) -> F64:
        """
        Return where a body is, shape (3,) [m].

        :raises UnknownNameError: no such body
        """
        if body not in self.bodies:
            raise UnknownNameError('body', body, self.bodies)
        position: F64 = self.positions[self.bodies.index(body)]
        return position

    def joints(self, names: tuple[str, ...]) -> F64:
        """
        Return the positions of named joints, shape (len(names),).

        :raises UnknownNameError: no such joint
        """
        for name in names:
            if name not in self.joint_names:
                raise UnknownNameError('joint', name, self.joint_names)
        return np.array([self.joint_positions[self.joint_names.index(name)] for name in names])
