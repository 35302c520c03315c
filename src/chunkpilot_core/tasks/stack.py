"""panda-gym's Stack: the blue cube to a point on the table, the green one on top of it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.robot import Robot
from chunkpilot_core.tasks import base
from chunkpilot_core.tasks.runtime.expert import above, Expert, grasp, holds, View, Wish
from chunkpilot_core.types import F64
import numpy as np


@dataclass(frozen=True, slots=True)
class StackConfig(base.TaskConfig):
    """panda-gym's threshold is on the distance of both cubes together."""

    distance_threshold: float = option(
        0.1, 'solved when both cubes together are closer than this', unit='m', min=0.001, max=0.2
    )
    timeout_s: float = option(20.0, 'an episode that lasts longer has failed', unit='s', min=0.1)


class Stack(base.TaskDefinition):
    """Cubes of 4 cm; blue weighs 2 kg, green 1 kg; they may start on top of each other."""

    Config: ClassVar[type[base.TaskConfig]] = StackConfig
    kind = 'stack'
    text = 'put the blue cube at the goal and the green cube on top of it'
    goal_names = ('goal.x', 'goal.y', 'goal.z', 'goal2.x', 'goal2.y', 'goal2.z')
    objects = (
        base.ObjectInfo('object', 'object1', base.BLUE, 0.04),
        base.ObjectInfo('object2', 'object2', base.GREEN, 0.04),
    )
    ghosts = ('target1', 'target2')

    def build(self, sim: Any, robot: Any) -> Any:
        """Create table, cubes and goal markers."""
        from panda_gym.envs.tasks.stack import Stack as PandaStack

        return PandaStack(sim, distance_threshold=self.config.distance_threshold)

    def expert(self, robot: Robot) -> Expert:
        """Return an expert that places blue, then green."""
        return StackExpert(robot)


class StackExpert(Expert):
    """Blue to its place, green on top; a green cube that is in the way is put aside first."""

    def plan(self, view: View) -> Wish:
        """Return the next way point."""
        blue, green = view.scene.position('object'), view.scene.position('object2')
        blue_goal, green_goal = view.scene.goal[:3], view.scene.goal[3:]
        holds_blue = holds(view, blue)
        if placed(blue, blue_goal, holds_blue):
            if beside(view, blue, other=green):
                rise = 0.08 if view.width > 0.06 else 0.0  # else the fingers take the cube along
                return Wish(above(view.tool, rise), opened=True)
            return transport(view, green, green_goal)
        if holds_blue or not in_the_way(green, blue, blue_goal):
            return transport(view, blue, blue_goal)
        return transport(view, green, aside(blue, blue_goal))


def transport(view: View, cube: F64, goal: F64) -> Wish:
    """
    Return the next way point of lifting ``cube`` (3,) over everything and setting it down at
    ``goal`` (3,).
    """
    if not holds(view, cube):
        return grasp(view, cube)
    far = float(np.hypot(*(goal - cube)[:2]))
    travel = 0.12
    if far > 0.03 and cube[2] < travel - 0.03:
        return Wish(above(view.tool, travel - cube[2]), opened=False)
    if far < 0.02:  # near enough: what is held slides in the fingers when the tool corrects
        return Wish(above(view.tool, goal[2] - cube[2]), opened=False)
    height = min(travel - goal[2], 2.0 * (far - 0.02))
    return Wish(view.tool + above(goal, height) - cube, opened=False)


def placed(cube: F64, goal: F64, held: bool) -> bool:
    """
    Whether a cube lies at its goal on the table: to be let go while ``held``, else to be left
    alone.
    """
    far = float(np.hypot(*(cube - goal)[:2]))
    return far < (0.025 if held else 0.04) and abs(cube[2] - goal[2]) < (0.006 if held else 0.015)


def beside(view: View, cube: F64, other: F64) -> bool:
    """
    Whether the fingers still stand around ``cube`` and are not about to grasp the ``other`` one.
    """
    near = np.hypot(*(cube - view.tool)[:2]) < 0.06 and view.tool[2] < cube[2] + 0.06
    return bool(near and np.hypot(*(other - view.tool)[:2]) > 0.015)


def in_the_way(green: F64, blue: F64, blue_goal: F64) -> bool:
    """Whether green lies on blue or where blue is to go."""
    on_blue = np.hypot(*(green - blue)[:2]) < 0.05 and green[2] > 0.04
    return bool(on_blue or np.hypot(*(green - blue_goal)[:2]) < 0.08)


def aside(blue: F64, blue_goal: F64) -> F64:
    """Return a place (3,) on the table away from blue and its goal."""
    places = [np.array([x, y, 0.02]) for x in (-0.1, 0.1) for y in (-0.15, 0.15)]
    clear = [min(np.hypot(*(p - blue)[:2]), np.hypot(*(p - blue_goal)[:2])) for p in places]
    return places[int(np.argmax(clear))]
