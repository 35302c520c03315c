"""panda-gym's Reach: bring the tool to a point."""

from typing import Any

from chunkpilot_core.robot import Robot
from chunkpilot_core.tasks import base
from chunkpilot_core.tasks.runtime.expert import Expert, View, Wish


class Reach(base.TaskDefinition):
    """Nothing to touch; the goal is up to 0.3 m above the table."""

    kind = 'reach'
    text = 'move the gripper to the goal'

    def build(self, sim: Any, robot: Any) -> Any:
        """Create table and goal marker."""
        from panda_gym.envs.tasks.reach import Reach as PandaReach

        return PandaReach(
            sim, robot.get_ee_position, distance_threshold=self.config.distance_threshold
        )

    def expert(self, robot: Robot) -> Expert:
        """Return an expert that goes straight there."""
        return ReachExpert(robot)


class ReachExpert(Expert):
    """Straight to the goal, gripper closed; the tip keeps off the table."""

    def plan(self, view: View) -> Wish:
        """Return the goal."""
        goal = view.scene.goal.copy()
        goal[2] = max(goal[2], 0.015)
        return Wish(goal, opened=False)
