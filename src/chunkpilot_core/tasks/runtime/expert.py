"""
Scripted experts: from the true scene and the commanded tool target to the next row of an action
space.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from chunkpilot_core import spaces
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.sim.scene import Scene
from chunkpilot_core.types import F32, F64
import numpy as np


@dataclass(frozen=True, slots=True)
class View:
    """
    What an expert looks at: measured ``tool`` (3,) [m], gripper ``width`` [m], and the scene.
    """

    tool: F64
    width: float
    scene: Scene


@dataclass(frozen=True, slots=True)
class Wish:
    """
    Where the tool should go: ``position`` (3,) [m], whether the gripper is open, share of the top
    speed.
    """

    position: F64
    opened: bool
    speed: float = 1.0


class Expert(ABC):
    """A function of what can be seen now, without memory, so that a policy can imitate it."""

    max_step_m = 0.012
    """[m] per row of 0.04 s, 0.3 m/s."""
    pace = 1.0
    """Share of that speed that is used: people who teleoperate move slower."""
    approach = 0.5
    """Share of the way left that one row covers at most, so that motion ends at the way point."""
    max_change_m = 0.0016
    """[m] per row and row, 1 m/s2: what the guard's joint limits let pass unclamped."""

    def __init__(self, robot: Robot) -> None:
        self.space = spaces.ee_delta_space()
        self._kinematics = Kinematics(robot)

    @abstractmethod
    def plan(self, view: View) -> Wish:
        """Return where to go next."""

    def __call__(self, scene: Scene, commanded: F64, before: F32 | None = None) -> F32:
        """
        Return the next row (A,) of :func:`spaces.ee_delta_space`.

        :param scene: ground truth
        :param commanded: target (T,) of the row before: tool position [m], gripper width [m]
        :param before: the row that has just run (A,), from which speed may change only so fast;
            None = however fast (it brakes softly in any case)
        """
        robot = self._kinematics.robot
        tool = self._kinematics.forward(scene.joints(robot.arm_joints)).position
        width = float(scene.joints(robot.gripper.joints).sum()) if robot.gripper else 0.0
        wish = self.plan(View(tool, width, scene))
        step = self._step(wish, commanded[:3])
        if before is not None:
            last = spaces.resolve_row(self.space, before, np.zeros_like(commanded))[:3]
            step = last + _shorten(step - last, self.max_change_m)
        opened = robot.gripper.max_width if robot.gripper and wish.opened else 0.0
        target = np.concatenate((commanded[:3] + step, [opened]))
        return spaces.to_row(self.space, target, commanded)

    def _step(self, wish: Wish, at: F64) -> F64:
        way = wish.position - at
        left = float(np.linalg.norm(way))
        braking = float(np.sqrt(2.0 * self.max_change_m * left))
        return _shorten(
            way, min(self.max_step_m * self.pace * wish.speed, self.approach * left, braking)
        )


def _shorten(vector: F64, longest: float) -> F64:
    length = float(np.linalg.norm(vector))
    return vector * (longest / length) if length > longest else vector


def above(point: F64, height: float) -> F64:
    """Return the point (3,) ``height`` [m] above another."""
    return np.array([point[0], point[1], point[2] + height])


def holds(view: View, cube: F64) -> bool:
    """
    Whether the fingers have closed on a cube of 4 cm at ``cube`` (3,) [m].

    PyBullet's fingers are not coupled: what they hold slides up to 2 cm along their axis, y.
    """
    offset = np.abs(cube - view.tool)
    return bool(0.03 < view.width < 0.043 and np.all(offset < (0.02, 0.03, 0.02)))


def between_fingers(view: View, cube: F64) -> bool:
    """Whether closing the gripper now would grasp the cube."""
    offset = cube - view.tool
    return bool(np.hypot(offset[0], offset[1]) < 0.015 and abs(offset[2]) < 0.012)


def grasp(view: View, cube: F64) -> Wish:
    """Return the next way point of grasping ``cube`` (3,) [m] from above."""
    if between_fingers(view, cube):
        return Wish(cube, opened=False)
    aside = float(np.hypot(*(cube - view.tool)[:2]))
    if aside < 0.012:
        return Wish(cube, opened=True)
    # slide down a funnel when already low, so that a near miss is corrected without going up again
    height = min(0.06, 0.02 + 1.5 * aside) if view.tool[2] < cube[2] + 0.1 else 0.06
    return Wish(above(cube, height), opened=True)
