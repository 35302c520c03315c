"""
Distances of the URDF's meshes (their convex hulls) by Coal, the collision library of Pinocchio.

Faster than PyBullet, as a call costs a microsecond; an extra (``pip install 'chunkpilot[coal]'``)
of 300 MB, where the guard's period is short or there are many obstacles.
"""

from functools import partial
from typing import Any
import xml.etree.ElementTree as ElementTree

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.bodies import Frames, Obstacle, Shape, transform
from chunkpilot_core.clearance.runtime.meshes import find_urdf, link_points
from chunkpilot_core.clearance.runtime.pairwise import Pairwise
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np


class Coal(Pairwise):
    """Meshes where the URDF has some; surroundings as they are."""

    def __init__(self, robot: Robot, config: Clearance.Config | None = None) -> None:
        """
        Read the meshes of the robot's URDF.

        :raises ConfigError: no Coal, no URDF, or one without the robot's links
        """
        try:
            import coal
        except ImportError as error:
            raise ConfigError(f'Coal is not there ({error}); use pybullet or capsules') from error
        self._coal: Any = coal
        if robot.collision is not None:
            file = find_urdf(robot.collision.urdf)
            try:
                urdf = ElementTree.parse(file).getroot()
            except ElementTree.ParseError as error:
                raise ConfigError(f'{file}: {error}') from error
            self._hulls = {
                body.name: self._hull(link_points(urdf, file.parent, body.urdf_link))
                for body in robot.collision.bodies
            }
        self._request = coal.DistanceRequest()
        super().__init__(robot, config)

    def _changed(self) -> None:
        frames = self._frames = Frames(self.robot, self.collision)
        shapes, where, mounts = [], [], []
        for body in self.collision.bodies:
            shapes.append(self._hulls[body.name])
            where.append(frames.index[body.frame])
            mounts.append(transform(body.xyz, body.rpy))
        for other in self.surroundings:
            shapes.append(self._shape(other))
            where.append(frames.index[other.frame])
            mounts.append(other.pose)
        names = [body.name for body in self.collision.bodies]
        index = {name: i for i, name in enumerate([*names, *(o.name for o in self.surroundings)])}
        self._of = [(index[first], index[second]) for first, second in self.pairs]
        self._watch()
        self._where, self._mounts = np.array(where), np.array(mounts)
        self._shapes = shapes  # Coal keeps no reference of its own
        places = [self._coal.Transform3s() for _ in shapes]
        self._put = [place.setTransform for place in places]
        self._result = self._coal.DistanceResult()
        self._ask = [
            partial(
                self._coal.ComputeDistance(shapes[first], shapes[second]),
                places[first],
                places[second],
                self._request,
                self._result,
            )
            for first, second in self._of
        ]

    def _poses(self, frames: F64) -> F64:
        poses: F64 = frames[:, self._where] @ self._mounts
        return poses

    def _place(self, joints: F64, poses: F64 | None, pairs: list[int]) -> None:
        assert poses is not None
        turns, places = poses[:, :3, :3], poses[:, :3, 3]
        for i in {shape for pair in pairs for shape in self._of[pair]}:
            self._put[i](turns[i], places[i])

    def _apart(self, pairs: list[int], reach: list[float]) -> list[float]:
        clear, found = self._result.clear, []
        for pair in pairs:
            clear()
            found.append(float(self._ask[pair]()))
        return found

    def _hull(self, points: F64) -> Any:
        corners = self._coal.StdVec_Vec3s()
        for point in points:
            corners.append(point)
        return self._coal.Convex.convexHull(corners, False, '')

    def _shape(self, obstacle: Obstacle) -> Any:
        size = obstacle.size
        if obstacle.shape is Shape.BOX:
            return self._coal.Box(*size)
        if obstacle.shape is Shape.SPHERE:
            return self._coal.Sphere(size[0])
        return self._coal.Capsule(size[0], size[1])
