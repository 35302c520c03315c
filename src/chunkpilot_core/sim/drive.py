"""Runs rows on a world without a graph: for scripted experts, demonstrations and tests."""

from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.sim.world import CONTROL_DT_S, World
from chunkpilot_core.types import ActionSpace, F32, F64
import numpy as np


class RowDriver:
    """
    Moves the target linearly through each row, as execution does, and turns it into joints, as the
    guard does.

    The gripper closes no faster than the robot's gripper may; other limits are the guard's affair.
    """

    def __init__(self, world: World, space: ActionSpace | None = None, dt_s: float = 0.04) -> None:
        """
        Start at the world's present joints.

        :param space: a tool group without rotation, then a gripper; the default is the shipped
            policies'
        :raises ConfigError: ``dt_s`` is no multiple of the control period, or the robot has no
            gripper
        """
        self.world = world
        self.space = space or spaces.ee_delta_space()
        self.ticks = round(dt_s / CONTROL_DT_S)
        if self.ticks < 1 or abs(self.ticks * CONTROL_DT_S - dt_s) > 1e-9:
            raise ConfigError(f'dt {dt_s} s must be a multiple of {CONTROL_DT_S} s')
        if world.robot.gripper is None:
            raise ConfigError(f'robot {world.robot.name!r} has no gripper')
        self._gripper = world.robot.gripper
        self._kinematics = Kinematics(world.robot)
        self.reset()

    def reset(self) -> None:
        """Start anew at the world's present joints, e.g. after its reset."""
        state = self.world.joint_state()
        self.commanded: F64 = spaces.from_joints(self.space, self._kinematics, state)
        self._arm = state.positions[: len(self.world.robot.arm_joints)]
        self._width = float(self.commanded[-1])

    def run(self, row: F32) -> bool:
        """Run one row (A,); return whether the task was solved at any tick of it."""
        before, after = self.commanded, spaces.resolve_row(self.space, row, self.commanded)
        solved = False
        for tick in range(1, self.ticks + 1):
            target = spaces.interpolate(self.space, before, after, tick / self.ticks)
            self.world.step(self._joints(target))
            solved = solved or self.world.success()
        self.commanded = after
        return solved

    def _joints(self, target: F64) -> F64:
        change = self._gripper.max_velocity * CONTROL_DT_S
        self._width += float(np.clip(target[-1] - self._width, -change, change))
        self._arm = self._kinematics.inverse(
            target[:3], self._kinematics.tool_rotation, self._arm
        ).joints
        fingers = np.full(len(self._gripper.joints), self._width / len(self._gripper.joints))
        return np.concatenate((self._arm, fingers))
