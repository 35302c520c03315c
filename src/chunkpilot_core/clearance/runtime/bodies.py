"""What may collide with what: bodies of the arm, surroundings, held things, and their pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from chunkpilot_core import rotations
from chunkpilot_core.collision import BASE, Box, Collision, HELD
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np

WORLD, TOOL = 'world', 'tool'
MAX_OBSTACLES = 50
MAX_PLACE, MAX_SIZE = 100.0, 20.0  # [m]


class Shape(Enum):
    """What an obstacle looks like; ``size`` is, in this order, in metres."""

    BOX = 'box'  # edge lengths along x, y, z
    SPHERE = 'sphere'  # radius
    CAPSULE = 'capsule'  # radius, distance of the ends' middles along z


_SIZES = {Shape.BOX: 3, Shape.SPHERE: 1, Shape.CAPSULE: 2}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """
    A convex thing in the world, or held: then ``frame`` is 'tool' and its pose is in that frame.

    ``position`` (3,) [m] and ``orientation`` (4,) xyzw of its middle. Fingers may touch what is
    ``graspable``.
    """

    name: str
    shape: Shape
    size: tuple[float, ...]
    position: F64
    orientation: F64
    frame: str = WORLD
    graspable: bool = False

    @property
    def held(self) -> bool:
        """Whether it moves with the tool."""
        return self.frame == TOOL

    @property
    def kind(self) -> tuple[object, ...]:
        """Everything but its place."""
        return self.name, self.shape, self.size, self.frame, self.graspable

    @property
    def pose(self) -> F64:
        """Its place as a transform (4, 4)."""
        pose = np.eye(4)
        pose[:3, :3] = rotations.from_quaternion(np.asarray(self.orientation, float))
        pose[:3, 3] = self.position
        return pose


@dataclass(frozen=True, slots=True)
class ObstacleList:
    """
    All obstacles that somebody sees at ``stamp_ns``, and what is held.

    What is ``lasting`` stays true until the next list; everything else gets old.
    """

    stamp_ns: int
    obstacles: tuple[Obstacle, ...]
    lasting: bool = False


def check_obstacles(obstacles: Sequence[Obstacle], taken: Sequence[str]) -> None:
    """
    Check what came from outside.

    :param taken: names that obstacles may not have
    :raises InvalidDataError: which obstacle, and what is wrong with it
    """
    if len(obstacles) > MAX_OBSTACLES:
        raise InvalidDataError(f'{len(obstacles)} obstacles, at most {MAX_OBSTACLES} are allowed')
    names = [obstacle.name for obstacle in obstacles]
    for obstacle in obstacles:
        what = f'obstacle {obstacle.name!r}'
        if not obstacle.name or names.count(obstacle.name) > 1 or obstacle.name in taken:
            raise InvalidDataError(f'{what}: needs a name of its own, taken: {sorted(taken)}')
        if obstacle.frame not in (WORLD, TOOL):
            raise InvalidDataError(f'{what}: frame {obstacle.frame!r}, allowed {WORLD}, {TOOL}')
        wanted = _SIZES[obstacle.shape]
        size = np.asarray(obstacle.size, float)
        if size.shape != (wanted,) or not np.all((size > 0.0) & (size <= MAX_SIZE)):
            raise InvalidDataError(
                f'{what}: size {tuple(obstacle.size)} of a {obstacle.shape.value} must be '
                f'{wanted} numbers above 0, at most {MAX_SIZE:g} m'
            )
        place = np.asarray(obstacle.position, float)
        if place.shape != (3,) or not np.all(np.abs(place) <= MAX_PLACE):  # NaN is not
            raise InvalidDataError(
                f'{what}: position {place.tolist()} must be 3 numbers within {MAX_PLACE:g} m'
            )
        turn = np.asarray(obstacle.orientation, float)
        if turn.shape != (4,) or not abs(float(np.sqrt(turn @ turn)) - 1.0) <= 1e-3:
            raise InvalidDataError(f'{what}: {turn.tolist()} is no unit quaternion (xyzw)')


def of_box(box: Box) -> Obstacle:
    """Return a box of the robot's file as an obstacle."""
    turn = rotations.to_quaternion(rotations.from_rpy(box.rpy))
    return Obstacle(box.name, Shape.BOX, box.size, np.array(box.xyz), turn)


def pairs(collision: Collision, surroundings: Sequence[Obstacle]) -> list[tuple[str, str]]:
    """Return the pairs to look at, by name: arm with itself, arm and held with the rest."""
    arm = [body.name for body in collision.bodies]
    fixed = {body.name for body in collision.bodies if body.frame == BASE}
    fingers = set(collision.fingers)
    found = [
        (first, second)
        for i, first in enumerate(arm)
        for second in arm[i + 1 :]
        if not collision.may_touch(first, second)
    ]
    around = [obstacle for obstacle in surroundings if not obstacle.held]
    for other in around:
        for body in arm:
            touching = other.graspable and body in fingers
            if not (body in fixed or touching or collision.may_touch(body, other.name)):
                found.append((body, other.name))
    for held in (obstacle for obstacle in surroundings if obstacle.held):
        # What the hand holds moves with it; the arm's last body is the hand's mount.
        carrying = fingers | _last_bodies(collision)
        found += [(body, held.name) for body in arm if body not in carrying]
        found += [(held.name, other.name) for other in around]
    return found


def _last_bodies(collision: Collision) -> set[str]:
    """Return the names of the bodies that are fixed to the arm's last moving frame."""
    slides = {slide.joint for slide in collision.slides}
    frames = [body.frame for body in collision.bodies if body.frame not in slides]
    return {body.name for body in collision.bodies if frames and body.frame == frames[-1]}


def thresholds(
    collision: Collision, listed: Sequence[tuple[str, str]], held: Sequence[str]
) -> tuple[F64, F64]:
    """Return the distances at which each pair stops and slows the arm, (P,) each [m]."""
    names = [tuple(HELD if name in held else name for name in pair) for pair in listed]
    limits = [collision.threshold(first, second) for first, second in names]
    both = np.array(limits).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


class Frames:
    """World transforms of everything that moves, for many joint positions at once."""

    def __init__(self, robot: Robot, collision: Collision) -> None:
        """Number the frames: world, base, each joint of the arm, tool, each finger."""
        self._n_arm = len(robot.arm_joints)
        self._base = transform(robot.base_xyz, robot.base_rpy)
        self._columns = [robot.joints.index(slide.joint) for slide in collision.slides]
        mounts = [transform(slide.xyz, slide.rpy) for slide in collision.slides]
        turns = [mount[:3, :3] for mount in mounts]
        axes = [turn @ s.axis for turn, s in zip(turns, collision.slides, strict=True)]
        self._mounts = np.array(mounts).reshape(-1, 4, 4)
        self._axes = np.array(axes).reshape(-1, 3)
        fingers = [slide.joint for slide in collision.slides]
        names = (WORLD, BASE, *robot.arm_joints, TOOL, *fingers)
        self.index = {name: i for i, name in enumerate(names)}

    def at(self, joints: F64, arm: F64) -> F64:
        """
        Return the frames, shape (N, F, 4, 4).

        :param joints: shape (N, J) [rad, m], fingers last
        :param arm: frames of the arm's joints and its tool there, shape (N, n + 1, 4, 4)
        """
        n = self._n_arm
        out = np.empty((len(joints), len(self.index), 4, 4))
        out[:, 0], out[:, 1] = _IDENTITY, self._base
        out[:, 2 : n + 3] = arm
        if self._columns:
            local = np.empty((len(joints), len(self._columns), 4, 4))
            local[:] = self._mounts
            local[..., :3, 3] += joints[:, self._columns, None] * self._axes
            np.matmul(out[:, n + 1, None], local, out=out[:, n + 3 :])
        return out


_IDENTITY = np.eye(4)


def transform(xyz: Sequence[float], rpy: tuple[float, float, float]) -> F64:
    """Return the transform (4, 4) of a URDF's origin."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotations.from_rpy(rpy), xyz
    return matrix
