"""Disturbances: seeded, the same for every strategy, and what they are said to be."""

from collections.abc import Callable
import math

from chunkpilot_core import robot as robots
from chunkpilot_core.config import build
from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.sim.disturbance import DisturbanceConfig
from chunkpilot_core.sim.drive import RowDriver
from chunkpilot_core.sim.world import World
import numpy as np
import pytest

PANDA = robots.load('panda')
KINEMATICS = Kinematics(PANDA)


class Bench:
    """A world with a disturbance, driven by its task's expert."""

    def __init__(self, task: str, **options) -> None:
        self.world = World(task, PANDA, None, build(DisturbanceConfig, options))
        self.driver = RowDriver(self.world)
        self.expert = self.world.definition.expert(PANDA)

    def run(self, seed: int, seconds: float, look: Callable[[World], np.ndarray]) -> np.ndarray:
        """Return what was looked at before each row."""
        self.world.reset(seed)
        self.driver.reset()
        row, seen = np.array((0.0, 0.0, 0.0, 1.0), np.float32), []
        for _ in range(round(seconds / 0.04)):
            seen.append(look(self.world))
            row = self.expert(self.world.scene(), self.driver.commanded, row)
            self.driver.run(row)
        return np.array(seen)

    def stand(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.01)):
            self.world.step()

    def close(self) -> None:
        self.world.close()


@pytest.fixture(name='bench')
def _bench():
    made: list[Bench] = []

    def make(task: str, **options) -> Bench:
        made.append(Bench(task, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def cube(world: World) -> np.ndarray:
    return world.objects()['object']


def goal(world: World) -> np.ndarray:
    return world.goal()


def tool(world: World) -> np.ndarray:
    return KINEMATICS.forward(world.joint_state().positions[:7]).position


def jumps(path: np.ndarray, least: float = 0.025) -> np.ndarray:
    """Return the lengths of moves that are too long for one row."""
    moves = np.linalg.norm(np.diff(path, axis=0), axis=1)
    return moves[moves > least]


def test_nothing_happens_by_default(bench):
    calm = bench('pick_and_place')
    assert not len(jumps(calm.run(0, 1.5, cube)))
    assert calm.world.disturbances == 0


def test_an_object_jumps_while_the_arm_approaches(bench):
    jumping = bench('pick_and_place', kind='object_jump')
    distances = []

    def look(world: World) -> np.ndarray:
        distances.append(np.linalg.norm(tool(world) - cube(world)))
        return cube(world)

    happened = []
    for seed in range(4):
        distances.clear()
        path = jumping.run(seed, 2.0, look)
        lengths = jumps(path)
        happened.append(jumping.world.disturbances)
        assert len(lengths) == happened[-1] <= 2
        assert np.all(lengths <= 0.062)
        assert np.all(np.abs(path[:, :2]) <= 0.151)
        before = np.flatnonzero(np.linalg.norm(np.diff(path, axis=0), axis=1) > 0.025)
        for i in before:
            assert 0.03 < distances[i] < 0.17, 'it is not in the fingers, and the arm is near'
    assert sum(happened) >= 4


def test_what_happens_depends_on_the_seed_only(bench):
    jumping = bench('push', kind='object_jump')
    paths = [jumping.run(seed, 1.5, cube) for seed in (1, 2, 1)]
    assert np.array_equal(paths[0], paths[2])
    assert not np.array_equal(paths[0], paths[1])
    events = []
    for kind in ('object_jump', 'target_jump', 'arm_push'):
        other = bench('push', kind=kind)
        other.world.reset(3)
        events.append(other.world._disturbance._events)
    assert events[0] == events[1] == events[2]


def test_nothing_happens_while_the_arm_stands(bench):
    for kind in ('object_jump', 'target_jump', 'target_move', 'arm_push'):
        waiting = bench('pick_and_place', kind=kind)
        waiting.world.reset(5)
        before = cube(waiting.world), goal(waiting.world), tool(waiting.world)
        waiting.stand(3.0)
        assert waiting.world.disturbances == 0
        for first, second in zip(before, (cube, goal, tool), strict=True):
            assert np.allclose(first, second(waiting.world), atol=2e-3)


def test_a_goal_jumps_and_stays(bench):
    jumping = bench('stack', kind='target_jump', count=1, target_jump_m=0.1)
    path = jumping.run(2, 2.0, goal)
    lengths = jumps(path)
    assert len(lengths) == jumping.world.disturbances == 1
    assert 0.05 * math.sqrt(2) - 1e-6 <= lengths[0] <= 0.1 * math.sqrt(2) + 1e-6  # of two points
    assert np.allclose(np.diff(path[:, [0, 3]], axis=1), np.diff(path[0, [0, 3]]))  # both alike
    assert np.all(path[:, 2] == path[0, 2])
    assert np.allclose(jumping.world.task.goal, path[-1], atol=1e-6)


def test_a_goal_moves_on(bench):
    moving = bench('pick_and_place', kind='target_move', target_speed=0.08, count=1)
    path = moving.run(2, 4.0, goal)
    speeds = np.linalg.norm(np.diff(path, axis=0), axis=1) / 0.04
    assert speeds[0] == 0.0
    moved = speeds[speeds > 0.0]
    assert np.mean(np.isclose(moved, np.median(moved))) > 0.9  # but for starting and turning
    assert 0.04 <= np.median(moved) <= 0.08
    assert np.abs(path[:, :2]).max() <= 0.151


def test_an_arm_is_pushed_aside_and_springs_back(bench):
    pushed = bench('reach', kind='arm_push', count=1, arm_push_m=0.05, arm_push_s=0.6)
    pushed.world.reset(4)
    assert pushed.world._disturbance._events[0].pause_s > 0.5, 'it comes when the arm is there'
    home = pushed.world.joint_state().positions
    moved = home + np.array([0.05, *[0.0] * 8])
    start, path = tool(pushed.world), []
    for _ in range(300):
        pushed.world.step(moved)
        path.append(tool(pushed.world))
    assert pushed.world.disturbances == 1
    off = np.linalg.norm(np.array(path) - path[-1], axis=1)[40:]  # once it is where it was sent
    assert 0.022 <= off.max() <= 0.055
    assert np.sum(off > 0.8 * off.max()) * 0.01 == pytest.approx(0.45, abs=0.2)
    assert np.allclose(pushed.world.joint_state().positions, moved, atol=3e-3)
    assert np.linalg.norm(path[-1] - start) > 0.01
    assert np.array_equal(pushed.world.targets, moved)  # nobody commanded it


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match='object_jump'):
        build(DisturbanceConfig, {'kind': 'object_jumps'})
