"""
Distances of the URDF's meshes (their convex hulls) by PyBullet, in a world of its own.

Joints are set directly: nothing is simulated.
"""

from functools import partial
from math import ceil
from pathlib import Path
import re
import tempfile
from types import BuiltinFunctionType
from typing import Any
from weakref import finalize

from chunkpilot_core import rotations
from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.bodies import Frames, Obstacle, Shape
from chunkpilot_core.clearance.runtime.meshes import find_urdf
from chunkpilot_core.clearance.runtime.pairwise import Pairwise
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.robot import Robot
from chunkpilot_core.sim.bullet import silence
from chunkpilot_core.types import F64

GRAIN_M = 0.002
DISTANCE = 8  # place of the distance in what PyBullet tells of a contact


Sized = tuple[Shape, tuple[float, ...]]


class PyBullet(Pairwise):
    """Meshes where the URDF has some; surroundings as they are."""

    def __init__(self, robot: Robot, config: Clearance.Config | None = None) -> None:
        """
        Load the URDF of the robot's file.

        :raises ConfigError: no PyBullet, no URDF, or one without the robot's joints and links
        """
        if robot.collision is not None:
            self._client = _World()
            self._arm = _load(self._client, robot, find_urdf(robot.collision.urdf))
        self._made: dict[str, tuple[Obstacle, int]] = {}
        self._spare: dict[Sized, list[int]] = {}
        super().__init__(robot, config)

    def _changed(self) -> None:
        self._frames = Frames(self.robot, self.collision)
        self._joint_of, links = _numbers(self._client, self._arm, self.robot)
        self._moved()
        places = {
            body.name: (self._arm, _known(links, body.urdf_link)) for body in self.collision.bodies
        }
        places |= {name: (number, -1) for name, (_, number) in self._made.items()}
        self._places = [(*places[first], *places[second]) for first, second in self.pairs]

    def _moved(self) -> None:
        self._place_surroundings()
        self._watch()
        self._held = [(number, other.pose) for other, number in self._made.values() if other.held]

    def _place_surroundings(self) -> None:
        """
        Make what is new and move everything to its place.

        PyBullet never gives back the memory of a shape, so that bodies are kept and used again,
        and sizes are whole numbers of 2 mm, rounded up: a noisy source makes a few of each.
        """
        before, self._made = self._made, {}
        wanted = {other.name: _sized(other) for other in self.surroundings}
        free = [pair for pair in before.values() if wanted.get(pair[0].name) != _sized(pair[0])]
        for other, number in free:
            self._spare.setdefault(_sized(other), []).append(number)
            del before[other.name]
        for other in self.surroundings:
            spare = self._spare.get(_sized(other))
            if other.name in before:
                number = before[other.name][1]
            else:
                number = spare.pop() if spare else _body(self._client, *_sized(other))
            self._made[other.name] = other, number
            if not other.held:
                self._client.resetBasePositionAndOrientation(
                    number, list(other.position), list(other.orientation)
                )

    def _follows(self) -> bool:
        return bool(self._held)

    def _place(self, joints: F64, poses: F64 | None, pairs: list[int]) -> None:
        values = [[value] for value in joints.tolist()]
        self._client.resetJointStatesMultiDof(self._arm, self._joint_of, values)
        if poses is not None:
            self._carry(poses)

    def _apart(self, pairs: list[int], reach: list[float]) -> list[float]:
        closest, found = self._client.getClosestPoints, []
        for pair, limit in zip(pairs, reach, strict=True):
            first, link, second, other = self._places[pair]
            points = closest(first, second, limit, link, other)
            found.append(min([point[DISTANCE] for point in points]) if points else limit)
        return found

    def _carry(self, frames: F64) -> None:
        """Put what is held where the tool is."""
        for number, local in self._held:
            place = frames[self._frames.index['tool']] @ local
            turn = rotations.to_quaternion(place[:3, :3])
            self._client.resetBasePositionAndOrientation(number, list(place[:3, 3]), list(turn))


class _World:
    """PyBullet's functions for one world of its own, which ends with this object."""

    def __init__(self) -> None:
        try:
            with silence():
                import pybullet
        except ImportError as error:
            raise ConfigError(f'PyBullet is not there ({error}); use capsules') from error
        self._bullet, self.number = pybullet, pybullet.connect(pybullet.DIRECT)
        finalize(self, pybullet.disconnect, self.number)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bullet, name)
        if isinstance(found, BuiltinFunctionType):
            found = partial(found, physicsClientId=self.number)
        setattr(self, name, found)
        return found


def _load(world: _World, robot: Robot, urdf: Path) -> int:
    """Return the robot in a world, at its base, without what is only to be seen."""
    text = re.sub(r'<visual>.*?</visual>', '', urdf.read_text(encoding='utf-8'), flags=re.DOTALL)
    with tempfile.TemporaryDirectory(prefix='chunkpilot-') as folder:
        file = Path(folder) / urdf.name
        file.write_text(text.replace('package://', f'{urdf.parent}/'), encoding='utf-8')
        turn = rotations.to_quaternion(rotations.from_rpy(robot.base_rpy))
        try:
            return int(
                world.loadURDF(str(file), list(robot.base_xyz), list(turn), useFixedBase=True)
            )
        except world.error as error:
            raise ConfigError(f'{urdf}: {error}') from error


def _numbers(client: Any, arm: int, robot: Robot) -> tuple[list[int], dict[str, int]]:
    """Return PyBullet's number of each of the robot's joints, and of all links by name."""
    infos = [client.getJointInfo(arm, i) for i in range(client.getNumJoints(arm))]
    joints = {info[1].decode(): int(info[0]) for info in infos}
    links = {info[12].decode(): int(info[0]) for info in infos}
    links[client.getBodyInfo(arm)[0].decode()] = -1
    for name in robot.joints:
        if name not in joints:
            raise UnknownNameError('joint of the URDF', name, joints)
    return [joints[name] for name in robot.joints], links


def _known(links: dict[str, int], name: str) -> int:
    if name not in links:
        raise UnknownNameError('link of the URDF (collision.bodies: urdf_link)', name, links)
    return links[name]


def _sized(obstacle: Obstacle) -> Sized:
    """Return what an obstacle looks like, a little larger than it is."""
    return obstacle.shape, tuple(ceil(size / GRAIN_M - 1e-6) * GRAIN_M for size in obstacle.size)


def _body(client: Any, shape: Shape, size: tuple[float, ...]) -> int:
    if shape is Shape.BOX:
        half = [edge / 2.0 for edge in size]
        number = client.createCollisionShape(client.GEOM_BOX, halfExtents=half)
    elif shape is Shape.SPHERE:
        number = client.createCollisionShape(client.GEOM_SPHERE, radius=size[0])
    else:
        number = client.createCollisionShape(client.GEOM_CAPSULE, radius=size[0], height=size[1])
    return int(client.createMultiBody(0.0, number))
