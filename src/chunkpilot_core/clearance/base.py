"""What every computation of distances offers: one number per pair of bodies."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from chunkpilot_core.clearance.runtime import bodies
from chunkpilot_core.clearance.runtime.bodies import Obstacle
from chunkpilot_core.clearance.runtime.levers import levers
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np

REACH_M = 0.15
"""[m] farther apart is not told: a pair's distance is this at most, whoever computes it."""


class Clearance(ABC):
    """
    Distances of a robot's bodies to each other, to its surroundings and to what it holds.

    P is the number of pairs; ``names`` (P,) are like 'link5-hand', 'finger1-table'; nearer than
    ``stop`` (P,) [m] a pair may not come, nearer than ``slow`` (P,) only slowly; ``levers`` (J, P)
    are as of :func:`levers`. All of them change with :meth:`set_obstacles`, which ``version``
    counts.
    """

    @dataclass(frozen=True)
    class Config:
        """No options."""

    names: tuple[str, ...]
    stop: F64
    slow: F64
    levers: F64
    version = 0

    def __init__(self, robot: Robot, config: 'Clearance.Config | None' = None) -> None:
        """
        Take the robot's bodies and its fixed surroundings.

        :raises ConfigError: the robot's file has no key ``collision``
        """
        if robot.collision is None:
            raise ConfigError(f"robot {robot.name!r} has no key 'collision': no shape is known")
        self.config = config or self.Config()
        self.robot, self.collision = robot, robot.collision
        self.kinematics = Kinematics(robot)
        self._joints, self._n_arm = len(robot.joints), len(robot.arm_joints)
        self._fixed = tuple(bodies.of_box(box) for box in robot.collision.environment)
        self.obstacles: tuple[Obstacle, ...] = ()
        self._take(())

    @abstractmethod
    def measure(self, joints: F64, arm: F64, reach: F64) -> F64:
        """
        Return the distances of :attr:`pairs`, shape (N, P) [m]; negative = penetrating.

        :param joints: shape (N, J), finite
        :param arm: :meth:`Kinematics.frames_along` of them, shape (N, n + 1, 4, 4)
        :param reach: of pairs farther apart any number from here on will do, of shape
            (P,) or (N, P) [m]
        """

    def set_obstacles(self, obstacles: Sequence[Obstacle]) -> None:
        """
        Replace all obstacles and held things; what the robot's file lists stays.

        :raises InvalidDataError: one of them is not usable; then the old ones stay
        """
        taken = [body.name for body in self.collision.bodies]
        bodies.check_obstacles(obstacles, taken + [box.name for box in self._fixed])
        self._take(tuple(obstacles))

    def distances(self, joints: F64) -> F64:
        """
        Return the distance of every pair, shape (P,) [m]: negative = penetrating, never NaN.

        :param joints: shape (J,) [rad, m], fingers last
        :raises InvalidDataError: wrong shape, or not finite
        """
        joints = np.asarray(joints, float)
        if joints.shape != (self._joints,):
            raise InvalidDataError(f'joints of shape {joints.shape}, must be ({self._joints},)')
        found: F64 = self.sweep(joints[None])[0]
        return found

    def sweep(self, joints: F64, arm: F64 | None = None, reach: F64 | None = None) -> F64:
        """
        Return the distances at many joint positions, shape (N, P) [m].

        :param joints: shape (N, J) [rad, m], fingers last
        :param arm: where that puts the arm, as of :meth:`Kinematics.frames_along`, if known
        :param reach: what is farther apart is not told, shape (P,) or (N, P) [m]; default
            ``REACH_M``
        :raises InvalidDataError: wrong shape, or not finite
        """
        joints = np.asarray(joints, float)
        if joints.ndim != 2 or joints.shape[1] != self._joints:
            raise InvalidDataError(f'joints of shape {joints.shape}, must be (N, {self._joints})')
        if not np.isfinite(joints).all():
            row = int(np.argmin(np.isfinite(joints).all(axis=1)))
            raise InvalidDataError(f'joints of row {row} are not finite: {joints[row].tolist()}')
        if arm is None:
            arm = self.kinematics.frames_along(joints[:, : self._n_arm])
        limit = self._reach if reach is None else reach
        found: F64 = np.minimum(self.measure(joints, arm, limit), limit)
        if np.isnan(found).any():
            raise InvalidDataError(f'{type(self).__name__}: a distance is not a number')
        return found

    def _take(self, obstacles: tuple[Obstacle, ...]) -> None:
        before, self.obstacles = self.obstacles, obstacles
        self.surroundings = (*self._fixed, *obstacles)
        self.version += 1
        if self.version > 1 and [o.kind for o in before] == [o.kind for o in obstacles]:
            if any(obstacle.held for obstacle in obstacles):
                self.levers = self._levers()
            self._moved()
            return
        self.pairs = bodies.pairs(self.collision, self.surroundings)
        held = [obstacle.name for obstacle in obstacles if obstacle.held]
        self.names = tuple(f'{first}-{second}' for first, second in self.pairs)
        self.stop, self.slow = bodies.thresholds(self.collision, self.pairs, held)
        self._reach = np.full(len(self.pairs), REACH_M)
        self.levers = self._levers()
        self._changed()

    def _levers(self) -> F64:
        return levers(self.robot, self.collision, self.surroundings, self.pairs)

    def _changed(self) -> None:  # noqa: B027 - optional
        """Prepare for new ``surroundings`` and ``pairs``."""

    def _moved(self) -> None:
        """Prepare for ``surroundings`` that are elsewhere, and otherwise as they were."""
        self._changed()


BASE = Clearance
