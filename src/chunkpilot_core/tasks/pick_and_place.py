"""panda-gym's PickAndPlace: bring a cube to a point on or above the table."""

from typing import Any

import numpy as np

from chunkpilot_core.robot import Robot
from chunkpilot_core.tasks import base
from chunkpilot_core.tasks.runtime.expert import Expert, View, Wish
from chunkpilot_core.types import F64


class PickAndPlace(base.TaskDefinition):
    """A green cube of 4 cm, 1 kg; the goal is on the table in 30 % of episodes, else up to 0.2 m above."""

    kind = 'pick_and_place'
    text = 'put the green cube at the goal'
    objects = (base.ObjectInfo('object', 'object', base.GREEN, 0.04),)

    def build(self, sim: Any, robot: Any) -> Any:
        """Create table, cube and goal marker."""
        from panda_gym.envs.tasks.pick_and_place import PickAndPlace as PandaPickAndPlace

        return PandaPickAndPlace(sim, distance_threshold=self.config.distance_threshold)

    def expert(self, robot: Robot) -> Expert:
        """Return an expert that grasps from above."""
        return PickAndPlaceExpert(robot)


class PickAndPlaceExpert(Expert):
    """Above the cube, down, close, to the goal."""

    def plan(self, view: View) -> Wish:
        """Return the next way point."""
        return carry(view, view.scene.position('object'), view.scene.goal)


def carry(view: View, cube: F64, goal: F64) -> Wish:
    """Return the next way point of grasping ``cube`` (3,) from above and bringing it to ``goal`` (3,) [m]."""
    offset = cube - view.tool
    aside = float(np.hypot(offset[0], offset[1]))
    if aside < 0.015 and abs(offset[2]) < 0.012:
        if view.width > 0.043:  # the fingers do not touch the cube yet
            return Wish(cube, opened=False)
        return Wish(goal - offset, opened=False)
    if aside < 0.012:
        return Wish(cube, opened=True)
    # slide down a funnel towards the cube, high while still far from it
    height = min(0.06, 0.02 + 1.5 * aside) if view.tool[2] < cube[2] + 0.1 else 0.06
    return Wish(cube + np.array([0.0, 0.0, height]), opened=True)
