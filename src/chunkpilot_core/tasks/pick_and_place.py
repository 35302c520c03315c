"""panda-gym's PickAndPlace: bring a cube to a point on or above the table."""

from typing import Any

from chunkpilot_core.robot import Robot
from chunkpilot_core.tasks import base
from chunkpilot_core.tasks.runtime.expert import Expert, grasp, holds, View, Wish


class PickAndPlace(base.TaskDefinition):
    """
    A green cube of 4 cm, 1 kg; the goal is on the table in 30 % of episodes, else up to 0.2 m
    above.
    """

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
    """Above the cube, down, close, straight to the goal."""

    def plan(self, view: View) -> Wish:
        """Return the next way point."""
        cube = view.scene.position('object')
        if holds(view, cube):
            return Wish(view.tool + view.scene.goal - cube, opened=False)
        return grasp(view, cube)
