"""
Forward and inverse kinematics of a serial arm, fast enough for every tick and free of simulators.
"""

from dataclasses import dataclass
import math

from chunkpilot_core import rotations
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np


@dataclass(frozen=True, slots=True)
class Pose:
    """Tool pose in the world: ``position`` (3,) [m], ``rotation`` (3, 3)."""

    position: F64
    rotation: F64


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of inverse kinematics: ``joints`` (J,) [rad] and what is left of the error."""

    joints: F64
    position_error: float
    rotation_error: float
    converged: bool


class Kinematics:
    """Kinematics of a robot's arm; J is its number of arm joints."""

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self._fixed = np.array([_transform(link.xyz, link.rpy) for link in robot.chain])
        self._fixed[0] = _transform(robot.base_xyz, robot.base_rpy) @ self._fixed[0]
        # The first two columns of each as complex numbers: turning them about z is one product.
        self._columns = self._fixed[:, :, 0] + 1j * self._fixed[:, :, 1]
        self._tool = _transform(robot.tool_xyz, robot.tool_rpy)
        self._lower = np.array([limit.min_position for limit in robot.limits])
        self._upper = np.array([limit.max_position for limit in robot.limits])
        self._home = np.array(robot.home)
        self.tool_rotation = rotations.from_quaternion(np.array(robot.tool_orientation))

    def frames(self, joints: F64) -> F64:
        """
        Return the world transforms of every joint frame and the tool, shape (J + 1, 4, 4).

        :param joints: shape (J,) [rad]
        :raises InvalidDataError: wrong shape
        """
        if joints.shape != self._home.shape:
            raise InvalidDataError(
                f'joints of shape {joints.shape}, {self.robot.name} has {self._home.shape}'
            )
        local = self._turned(joints)
        out = np.empty((len(joints) + 1, 4, 4))
        before = out[0]
        before[:] = local[0]
        for here, turn in zip(out[1:], (*local[1:], self._tool), strict=True):
            np.dot(before, turn, out=here)
            before = here
        return out

    def _turned(self, joints: F64) -> F64:
        """Return each joint's transform from the one before it, shape (..., J, 4, 4)."""
        local = np.empty((*joints.shape, 4, 4))
        local[:] = self._fixed
        turn = np.empty(joints.shape, np.complex128)
        np.cos(joints, out=turn.real)
        np.sin(-joints, out=turn.imag)
        local.view(np.complex128)[..., 0] = self._columns * turn[..., None]
        return local

    def frames_along(self, joints: F64) -> F64:
        """
        Return :meth:`frames` at many joint positions, shape (N, J + 1, 4, 4).

        :param joints: shape (N, J) [rad]
        :raises InvalidDataError: wrong shape
        """
        if joints.ndim != 2 or joints.shape[1:] != self._home.shape:
            raise InvalidDataError(
                f'joints of shape {joints.shape}, {self.robot.name} has (N, {len(self._home)})'
            )
        local = self._turned(joints)
        n = joints.shape[1]
        out = np.empty((len(joints), n + 1, 4, 4))
        out[:, 0] = local[:, 0]
        for i in range(1, n):
            np.matmul(out[:, i - 1], local[:, i], out=out[:, i])
        np.matmul(out[:, n - 1], self._tool, out=out[:, n])
        return out

    def forward(self, joints: F64) -> Pose:
        """Return the tool pose at ``joints`` (J,) [rad]."""
        tool = self.frames(joints)[-1]
        return Pose(tool[:3, 3].copy(), tool[:3, :3].copy())

    def jacobian(self, joints: F64) -> F64:
        """Return the geometric Jacobian of the tool, shape (6, J): [m/rad] over [rad/rad]."""
        return _jacobian(self.frames(joints))

    def inverse(
        self,
        position: F64,
        rotation: F64,
        start: F64,
        *,
        max_iterations: int = 10,
        tolerance: float = 1e-7,
        posture_gain: float = 0.02,
        frames: F64 | None = None,
    ) -> Solution:
        """
        Find joints that bring the tool to a pose, near ``start`` and inside the position limits.

        Damped least squares with a pull towards home in the null space, damped most where the arm
        is singular (Nakamura and Hanafusa 1986).

        :param position: shape (3,) [m], world
        :param rotation: shape (3, 3), world
        :param start: shape (J,) [rad]; at a control rate the joints of the tick before
        :param tolerance: on both errors [m], [rad]
        :param posture_gain: share of the distance to home that is closed by one call
        :param frames: :meth:`frames` of ``start``, if known
        """
        joints = start.copy()
        pull = posture_gain / max_iterations
        for i in range(max_iterations):
            if i or frames is None:
                frames = self.frames(joints)
            error = self._error(frames[-1], position, rotation)
            left_p, left_r = _length(error[:3]), _length(error[3:])
            if max(left_p, left_r) < tolerance:
                return Solution(joints, left_p, left_r, True)
            joints = self._step(joints, _jacobian(frames), error, pull)
        left = self._error(self.frames(joints)[-1], position, rotation)
        left_p, left_r = _length(left[:3]), _length(left[3:])
        return Solution(joints, left_p, left_r, max(left_p, left_r) < 10 * tolerance)

    def _step(self, joints: F64, jacobian: F64, error: F64, pull: float) -> F64:
        gram = jacobian @ jacobian.T
        manipulability = math.sqrt(max(float(np.linalg.det(gram)), 0.0))
        damping = 0.0 if manipulability > 0.02 else 0.05**2 * (1 - manipulability / 0.02) ** 2
        posture = pull * (self._home - joints)
        gram.reshape(-1)[::7] += damping + 1e-12  # its diagonal
        inner = np.linalg.solve(gram, error - jacobian @ posture)
        change = posture + jacobian.T @ inner
        largest = float(np.abs(change).max())
        if largest > 0.3:
            change *= 0.3 / largest
        moved: F64 = np.minimum(np.maximum(joints + change, self._lower), self._upper)
        return moved

    @staticmethod
    def _error(tool: F64, position: F64, rotation: F64) -> F64:
        error = np.empty(6)
        np.subtract(position, tool[:3, 3], out=error[:3])
        error[3:] = rotations.between(tool[:3, :3], rotation)
        return error


def _length(vector: F64) -> float:
    return math.sqrt(float(vector @ vector))


def _jacobian(frames: F64) -> F64:
    axes, origins = frames[:-1, :3, 2], frames[:-1, :3, 3]
    arms = frames[-1, :3, 3] - origins
    jacobian = np.empty((6, len(axes)))
    jacobian[0] = axes[:, 1] * arms[:, 2] - axes[:, 2] * arms[:, 1]
    jacobian[1] = axes[:, 2] * arms[:, 0] - axes[:, 0] * arms[:, 2]
    jacobian[2] = axes[:, 0] * arms[:, 1] - axes[:, 1] * arms[:, 0]
    jacobian[3:] = axes.T
    return jacobian


def _transform(xyz: tuple[float, float, float], rpy: tuple[float, float, float]) -> F64:
    matrix = np.eye(4)
    matrix[:3, :3] = rotations.from_rpy(rpy)
    matrix[:3, 3] = xyz
    return matrix
