"""
Errors that a deployment has and training did not: a camera that was knocked, an arm that moves
otherwise than told.
"""

from collections import deque
from dataclasses import dataclass, replace
import math

from chunkpilot_core import rotations
from chunkpilot_core.camera import Camera
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64, nanoseconds
import numpy as np


@dataclass(frozen=True, slots=True)
class ActionErrors:
    """
    How the robot distorts what it is told.

    With p0 the tool position at the last reset and p the commanded one, the robot goes to
    ``p0 + gain * Rz(yaw) (p - p0) + bias * min(1, |p - p0| / 2 cm)``; orientation and gripper stay
    as commanded. The bias fades in over the first 2 cm, so that nothing jumps at the first
    command.
    """

    action_yaw_deg: float = option(
        0.0, 'turn of the action frame about +z', unit='deg', min=-180, max=180
    )
    action_gain: float = option(
        1.0, 'commanded displacements are multiplied by this', min=0.1, max=2
    )
    action_bias: tuple[float, ...] = option(
        (0.0, 0.0, 0.0),
        'constant error xyz of the commanded tool position',
        unit='m',
        min=-0.1,
        max=0.1,
    )
    command_latency_s: float = option(
        0.0, 'time from the receipt of a command to its effect', unit='s', min=0, max=2
    )

    def __post_init__(self) -> None:
        if len(self.action_bias) != 3:
            raise ConfigError(f'action_bias: {self.action_bias} must have 3 values')

    @property
    def distorts(self) -> bool:
        """Whether commanded positions are changed at all."""
        return bool(self.action_yaw_deg or self.action_gain != 1.0 or any(self.action_bias))


class ActionChannel:
    """The way from the receipt of joint targets (J,) to the motors: latency, then distortion."""

    def __init__(self, errors: ActionErrors, robot: Robot) -> None:
        self.errors = errors
        self._kinematics = Kinematics(robot)
        self._arm = len(robot.arm_joints)
        yaw = math.radians(errors.action_yaw_deg)
        self._turn = errors.action_gain * rotations.from_rpy((0.0, 0.0, yaw))
        self._bias = np.array(errors.action_bias)
        self._waiting: deque[tuple[int, F64]] = deque()
        self._anchor = np.zeros(3)
        self._last = np.zeros(self._arm)

    def reset(self, joints: F64) -> None:
        """Forget what is on its way; displacements count from ``joints`` (J,)."""
        self.flush()
        self._last = joints[: self._arm].copy()
        self._anchor = self._kinematics.forward(self._last).position

    def flush(self) -> None:
        """Drop what is on its way."""
        self._waiting.clear()

    def put(self, now_ns: int, targets: F64) -> None:
        """Take a command (J,) in."""
        self._waiting.append((now_ns + nanoseconds(self.errors.command_latency_s), targets))

    def take(self, now_ns: int) -> F64 | None:
        """Return the newest command that is due, as the motors get it (J,), or None."""
        due = None
        while self._waiting and self._waiting[0][0] <= now_ns:
            due = self._waiting.popleft()[1]
        if due is None or not self.errors.distorts:
            return due
        return self._distort(due)

    def _distort(self, targets: F64) -> F64:
        pose = self._kinematics.forward(targets[: self._arm])
        moved = pose.position - self._anchor
        fade = min(1.0, float(np.linalg.norm(moved)) / 0.02)
        position = self._anchor + self._turn @ moved + fade * self._bias
        self._last = self._kinematics.inverse(position, pose.rotation, self._last).joints
        return np.concatenate((self._last, targets[self._arm :]))


def misplaced(camera: Camera, object_offset: F64) -> Camera:
    """
    Return the camera where it really stands when everything that it sees appears shifted by
    ``object_offset``.

    :param camera: as calibrated
    :param object_offset: shape (3,) [m], perceived minus true position
    """
    return replace(camera, position=camera.position - object_offset)
