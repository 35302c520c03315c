"""
Things in the way that reactive braking serves badly, placed by the seed around each scene.

A ledge and a post stand where the straight way from the start to the object and on to the goal
comes nearer to them than the guard allows: who only brakes rests in front of them. A wall stands
so near behind the goal that there is no room to come in fast. The task can be done: along a way
over everything, which is looked at as the straight one is, the arm keeps all distances.
"""

from collections.abc import Sequence
from itertools import pairwise

from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.sim.world import World
from chunkpilot_core.types import F64
import numpy as np

KINDS = ('edge', 'beside', 'wall')
HAND_M = np.array([0.035, 0.11])  # half extents of the hand along x and y
ROOM_M = {'edge': (0.02, 0.04), 'beside': (-0.06, 0.01), 'wall': (0.02, 0.03)}
"""[m] between the hand and the thing: at the object, on the straight way, at the goal."""
HEIGHT_M = {'edge': (0.05, 0.14), 'beside': (0.05, 0.18), 'wall': (0.1, 0.15)}
LIFT_M = 0.25  # height of the way over everything
STEP_M = 0.02  # between poses of it that are looked at
SLACK_M = 0.01  # by which these keep more than the distances at which the guard stops
HIT_M = -0.005  # by which the straight way keeps less
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
        straight = self._poses(joints, (tool, cube, goal))
        over = [tool]
        for place in (cube, goal):
            over += [_over(over[-1]), _over(place), place]
        free = self._poses(joints, over)
        for _ in range(TRIES):
            thing = self._draw(rng, tool, cube, goal)
            near = self.kind == 'wall' or self._slack(thing, straight) < HIT_M
            if near and self._slack(thing, free) > SLACK_M:
                return (thing,)
        raise ConfigError(f'no place for {self.kind!r} in the scene of seed {seed}')

    def _draw(self, rng: np.random.Generator, tool: F64, cube: F64, goal: F64) -> Obstacle:
        """Return a thing."""
        room, height = rng.uniform(*ROOM_M[self.kind]), rng.uniform(*HEIGHT_M[self.kind])
        if self.kind == 'wall':  # behind the goal, across the way of the cube
            away = _direction(goal - cube, rng, spread=0.3)
            place = goal[:2] + away * (_extent(away) + room + 0.01)
            return _box('wall', (0.02, 0.2, height), place, away)
        if self.kind == 'edge':  # the object lies behind a ledge, seen from where the hand starts
            away = _direction(tool - cube, rng, spread=0.6)
            place = cube[:2] + away * (_extent(away) + room + 0.02)
            return _box('edge', (0.04, 0.2, height), place, away)
        start, end = (tool, cube) if rng.random() < 0.5 else (cube, goal)
        along = _direction(end - start, rng, spread=0.0)
        side = np.array([-along[1], along[0]]) * rng.choice((-1.0, 1.0))
        middle = start[:2] + rng.uniform(0.3, 0.7) * (end - start)[:2]
        place = middle + side * (_extent(side) + room + 0.015)
        return _box('post', (0.03, 0.03, height), place, side)

    def _poses(self, joints: F64, corners: Sequence[F64]) -> F64:
        """Return joints (N, J) along straight ways of the tool."""
        poses = [joints]
        for start, end in pairwise(corners):
            count = max(int(np.ceil(np.linalg.norm(end - start) / STEP_M)), 1)
            for share in np.arange(1, count + 1) / count:
                found = self._kinematics.inverse(
                    start + share * (end - start),
                    self._kinematics.tool_rotation,
                    poses[-1][:7],
                    max_iterations=60,
                )
                poses.append(np.concatenate((found.joints, joints[7:])))
        return np.array(poses)

    def _slack(self, thing: Obstacle, poses: F64) -> float:
        """Return the least distance [m] along poses above that at which the guard stops."""
        self._clearance.set_obstacles((thing,))
        slack = self._clearance.sweep(poses) - self._clearance.stop
        own = [thing.name in name for name in self._clearance.names]
        return float(slack[:, own].min())


def _over(place: F64) -> F64:
    return np.array([place[0], place[1], max(LIFT_M, place[2])])


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
