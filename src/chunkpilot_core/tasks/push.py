"""panda-gym's Push: slide a cube over the table to a point, fingers closed."""

from typing import Any

from chunkpilot_core.robot import Robot
from chunkpilot_core.tasks import base
from chunkpilot_core.tasks.runtime.expert import Expert, View, Wish
from chunkpilot_core.types import F64
import numpy as np


class Push(base.TaskDefinition):
    """A green cube of 4 cm, 1 kg; the goal is on the table."""

    kind = 'push'
    text = 'push the green cube to the goal'
    objects = (base.ObjectInfo('object', 'object', base.GREEN, 0.04),)

    def build(self, sim: Any, robot: Any) -> Any:
        """Create table, cube and goal marker."""
        from panda_gym.envs.tasks.push import Push as PandaPush

        return PandaPush(sim, distance_threshold=self.config.distance_threshold)

    def expert(self, robot: Robot) -> Expert:
        """Return an expert that pushes in a straight line."""
        return PushExpert(robot)


class PushExpert(Expert):
    """
    Behind the cube as seen from the goal, down, straight through the cube's centre to the goal.
    """

    clearance = 0.065
    """[m] from the cube's centre to where the fingers come down behind it."""
    contact = 0.03
    """[m] from the cube's centre to the tool while pushing."""
    low, high = 0.02, 0.09
    """[m] of the tool above the table: while pushing, and on the way to behind the cube."""
    reach = 0.795
    """[m] from the base along the table, with the fingers pointing down."""

    def plan(self, view: View) -> Wish:
        """Return the next way point."""
        cube, goal = view.scene.position('object'), view.scene.goal
        way = goal[:2] - cube[:2]
        left = float(np.hypot(*way))
        if left < 0.005:
            return Wish(view.tool, opened=False)
        ahead = way / left
        behind = (view.tool - cube)[:2]
        along = float(behind @ ahead)
        side = behind - along * ahead
        aside = float(np.hypot(*side))
        if view.tool[2] < self.low + 0.015 and along < -0.015 and aside < 0.015:
            stroke = (left - self.contact - along) * ahead - 3.0 * side
            return Wish(np.array([*(view.tool[:2] + stroke), self.low]), False, 0.7)
        start = self._within_reach(cube[:2] - self.clearance * ahead)
        off = float(np.hypot(*(view.tool[:2] - start)))
        # come down in a funnel, so that the fingers never land on the cube
        height = self.low if off < 0.012 else min(self.high, self.low + 3.0 * off)
        return Wish(np.array([*start, height]), False)

    def _within_reach(self, point: F64) -> F64:
        """Return a point (2,) above the table, drawn towards the base if it is too far away."""
        base = np.array(self._kinematics.robot.base_xyz[:2])
        far = float(np.hypot(*(point - base)))
        return point if far <= self.reach else base + self.reach / far * (point - base)
