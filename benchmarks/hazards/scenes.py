"""
Things in the way that reactive braking serves badly, placed by the seed around each scene.

The arm can do the task without touching them: where it starts, at the object and at the goal it
keeps all distances. What lies between is the policy's business, which knows nothing of them.
"""

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.sim.world import World
from chunkpilot_core.types import F64
import numpy as np

KINDS = ('edge', 'beside', 'wall')
HAND_M = np.array([0.035, 0.11])  # half extents of the hand along x and y
ROOM_M = {'edge': (0.022, 0.035), 'beside': (-0.02, 0.04), 'wall': (0.022, 0.035)}
"""[m] between the hand and the thing, where the policy's straight way passes."""
TRIES = 200


class Scenes:
    """Makes the obstacles of one kind; what ``Surroundings`` of a loop are made by."""

    def __init__(self, kind: str, clearance: Clearance) -> None:
        """
        Take a kind.

        :param clearance: with which a place is looked at; its obstacles are changed
        """
        self.kind, self._clearance = kind, clearance
        self._kinematics = Kinematics(clearance.robot)

    def __call__(self, world: World, seed: int) -> tuple[Obstacle, ...]:
        """
        Return what stands in the way in this world.

        :raises ConfigError: no place was found
        """
        rng = np.random.default_rng((seed, KINDS.index(self.kind)))
        joints = world.joint_state().positions
        tool = self._kinematics.forward(joints[:7]).position
        cube, goal = world.objects()['object'], world.goal()[:3]
        poses = self._poses(joints, tool, cube, goal)
        for i in range(TRIES):
            thing = self._draw(rng, tool, cube, goal, 0.1 * max(i - 40, 0) / TRIES)
            if self._possible(thing, poses):
                return (thing,)
        raise ConfigError(f'no place for {self.kind!r} in the scene of seed {seed}')

    def _draw(
        self, rng: np.random.Generator, tool: F64, cube: F64, goal: F64, more: float
    ) -> Obstacle:
        """Return a thing; ``more`` room where nothing was possible nearer [m]."""
        room = rng.uniform(*ROOM_M[self.kind]) + more
        if self.kind == 'wall':  # behind the goal, across the way of the cube
            away = _direction(goal - cube, rng, spread=0.3)
            place = goal[:2] + away * (_extent(away) + room + 0.01)
            return _box('wall', (0.02, 0.2, 0.15), place, away)
        if self.kind == 'edge':  # the object lies at the foot of a ledge
            away = _direction(cube - tool, rng, spread=1.5)
            place = cube[:2] + away * (_extent(away) + room + 0.02)
            return _box('edge', (0.04, 0.2, 0.1), place, away)
        start, end = (tool, cube) if rng.random() < 0.5 else (cube, goal)
        along = _direction(end - start, rng, spread=0.0)
        side = np.array([-along[1], along[0]]) * rng.choice((-1.0, 1.0))
        middle = start[:2] + rng.uniform(0.35, 0.65) * (end - start)[:2]
        place = middle + side * (_extent(side) + room + 0.015)
        return _box('post', (0.03, 0.03, 0.3), place, side)

    def _poses(self, joints: F64, tool: F64, cube: F64, goal: F64) -> F64:
        """Return joints (N, J) of where the arm must be able to be."""
        poses = [joints]
        for place in (cube + np.array([0.0, 0.0, 0.1]), cube, goal):
            found = self._kinematics.inverse(
                place, self._kinematics.tool_rotation, poses[-1][:7], max_iterations=60
            )
            poses.append(np.concatenate((found.joints, joints[7:])))
        return np.array(poses)

    def _possible(self, thing: Obstacle, poses: F64) -> bool:
        self._clearance.set_obstacles((thing,))
        slack = self._clearance.sweep(poses) - self._clearance.stop
        own = [thing.name in name for name in self._clearance.names]
        return bool(np.all(slack[:, own] > 0.005))


def _direction(way: F64, rng: np.random.Generator, spread: float) -> F64:
    angle = np.arctan2(way[1], way[0]) + rng.uniform(-spread, spread)
    return np.array([np.cos(angle), np.sin(angle)])


def _extent(direction: F64) -> float:
    """Return how far the hand reaches in a direction (2,) [m]."""
    return float(np.abs(direction) @ HAND_M)


def _box(name: str, size: tuple[float, float, float], place: F64, facing: F64) -> Obstacle:
    half = np.arctan2(facing[1], facing[0]) / 2.0
    position = np.array([place[0], place[1], size[2] / 2.0])
    turn = np.array([0.0, 0.0, np.sin(half), np.cos(half)])
    return Obstacle(name, Shape.BOX, size, position, turn)
